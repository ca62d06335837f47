"""The memory engine: process-local, two heaps per domain; nothing in it is durable."""

from commandbus.engines.memory.engine import MemoryEngine
from commandbus.engines.memory.queue import PriorityDelayQueue

__all__ = ["MemoryEngine", "PriorityDelayQueue"]
