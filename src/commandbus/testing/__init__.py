"""Public helpers for the tests of an application, and for our own.

`FakeClock` lets a test travel in time; `eventually` waits for a condition that has no event; the
harnesses drive a bus of either runtime with the same blocking calls. `commandbus.testing.conformance`
is the suite that every engine passes, and `commandbus.testing.postgres` a server for tests.
"""

from __future__ import annotations

from commandbus.testing.clock import FakeClock
from commandbus.testing.handlers import Gate, Recorder
from commandbus.testing.harness import AsyncHarness, Configuration, Harness, SyncHarness
from commandbus.testing.waiting import eventually

__all__ = [
    "AsyncHarness",
    "Configuration",
    "FakeClock",
    "Gate",
    "Harness",
    "Recorder",
    "SyncHarness",
    "eventually",
]
