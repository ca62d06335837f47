"""Staged situations of commands that run, of batches and of processes; see `situations.py`."""

from __future__ import annotations

from typing import Any

from commandbus.domain.command import SendRequest
from commandbus.errors import (
    PermanentCommandError,
)
from commandbus.testing.conformance.helpers import Stage, situation
from commandbus.testing.sagas import Approved, BookTrip, Sagas

MINUTE = 60.0


# Running.


@situation("It is running", "RUNNING", says="it has been running since 20", cure="nothing to do")
def running(at: Stage) -> Any:
    sent = at.send()
    at.take()
    return sent


@situation(
    "Its handler is isolated, and no child process is there yet", "RUNNING", "CHILD_STARTS",
    says="needs a child process, and its worker has none yet (0 restarted)",
    cure="wait; when it stays so, look at the worker's log",
)  # fmt: skip
def child_starts(at: Stage) -> Any:
    sent = at.send()
    at.take()
    at.report_hand(isolated=((at.domain, "ship"),))
    return sent


@situation(
    "Its handler is isolated, and child processes die", "RUNNING", "CHILDREN_END",
    says="those of its worker ended before: 7 restarted, 3 killed by memory",
    cure="look at the causes on the workers page; raise the limit, or fix the handler",
)  # fmt: skip
def children_die(at: Stage) -> Any:
    sent = at.send()
    at.take()
    restarts = {"children": 2, "child_restarts": 7, "child_kills": {"memory": 3}}
    at.report_hand(isolated=((at.domain, "ship"),), **restarts)
    return sent


@situation(
    "Its lease is held by a worker that is frozen or dead", "RUNNING", "WORKER_SILENT",
    says="does not report itself: it is dead, frozen or cut off",
    cure="wait for the end of the lease; end the frozen process",
)  # fmt: skip
def frozen(at: Stage) -> Any:
    sent = at.send()
    at.take()
    at.bus.advance(11)
    return sent


# Batches and processes.


@situation(
    "A batch is open: commands wait", "BATCH_OPEN",
    says="2 of its 2 commands have not ended", cure="ask about one: `commandbus batch commands`",
)  # fmt: skip
def batch_open(at: Stage) -> Any:
    requests = [SendRequest(at.domain, "ship") for _ in range(2)]
    return at.bus.call(at.bus.bus.create_batch, requests).batch_id


@situation(
    "A batch is open: a command is parked", "BATCH_OPEN",
    says="parked and wait for an operator", cure="retry, complete or cancel the parked command",
)  # fmt: skip
def batch_parked(at: Stage) -> Any:
    batch = at.bus.call(at.bus.bus.create_batch, [SendRequest(at.domain, "ship")])
    at.fail(PermanentCommandError("BROKEN"))
    return batch.batch_id


@situation(
    "A process waits for a signal", "STEP",
    says="waits for the signal 'approved'", cure="`commandbus process signal`, or wait for its timeout",
)  # fmt: skip
def signal(at: Stage) -> Any:
    at.serve(processes=("approved",))
    sagas = Sagas(at.bus, Approved)  # before the others, whose commands are in the same domain
    process_id = sagas.start()
    sagas.end("ask")
    sagas.route()
    return process_id


@situation(
    "A process has no router", "NO_ROUTER", "STEP",
    says="no live router drives processes of type 'book_trip'",
    cure="register the process in a worker, or run `commandbus process route`",
)  # fmt: skip
def no_router(at: Stage) -> Any:
    return Sagas(at.bus, BookTrip).start()


@situation(
    "A process waits for its command", "STEP",
    says="its step 'hotel' waits for command", cure="as for the command, which is named",
)  # fmt: skip
def process_step(at: Stage) -> Any:
    at.serve(processes=("book_trip",))
    return Sagas(at.bus, BookTrip).start()


@situation(
    "A chain waits for its first command", "NO_ROUTER", "STEP",
    says="waits for command", cure="as for the command, which is named",
)  # fmt: skip
def chain(at: Stage) -> Any:
    first, second = SendRequest(at.domain, "ship"), SendRequest(at.domain, "bill")
    return at.bus.call(at.bus.bus.chain, first, second).process_id
