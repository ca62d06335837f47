"""Public helpers for the tests of an application, and for our own.

`FakeClock` lets a test travel in time; `drain` carries out what is ready, `assert_sent` looks at what
was sent, and `crash_every_await` crashes a handler at every point; `eventually` waits for a condition
that has no event; the harnesses drive a bus of either runtime with the same blocking calls.
`commandbus.testing.conformance`, from the distribution durable-commandbus-lab, is the suite that every
engine passes, and `commandbus.testing.postgres` a server for tests.
"""

from __future__ import annotations

from commandbus.testing.clock import FakeClock
from commandbus.testing.crashing import Crash
from commandbus.testing.draining import drain
from commandbus.testing.handlers import Gate, Recorder, handler_context, sync_handler_context
from commandbus.testing.harness import AsyncHarness, Configuration, Harness, SyncHarness
from commandbus.testing.sent import assert_sent, sent_commands
from commandbus.testing.trials import Trial, crash_every_await
from commandbus.testing.waiting import eventually

__all__ = [
    "AsyncHarness",
    "Configuration",
    "Crash",
    "FakeClock",
    "Gate",
    "Harness",
    "Recorder",
    "SyncHarness",
    "Trial",
    "assert_sent",
    "crash_every_await",
    "drain",
    "eventually",
    "handler_context",
    "sent_commands",
    "sync_handler_context",
]
