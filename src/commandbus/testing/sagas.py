"""Processes for tests, and a hand to drive them: replies are routed when a test says so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from commandbus.domain.command import SendRequest
from commandbus.domain.process.declaration import END, Process, StartProcess, WaitFor, step
from commandbus.domain.process.values import ProcessEvent, ProcessRecord
from commandbus.domain.reply import Reply
from commandbus.operations.batches import close_open_batches
from commandbus.operations.processes import StartProcessResult
from commandbus.operations.routing import RouteReport, fire_timers, route
from commandbus.services.process_router import declarations_of
from commandbus.store.records import ClaimRequest
from commandbus.testing.harness import Harness

DOMAIN = "travel"


@dataclass
class Trip:
    to: str = "Rome"
    hotel: str | None = None
    paid: int = 0
    luxury: bool = False
    log: list[str] = field(default_factory=list)


class BookTrip(Process[Trip]):
    """Hotel, car, payment; each but the last can be undone."""

    @step
    def hotel(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "book_hotel", {"to": state.to})

    @hotel.reply
    def hotel_booked(self, state: Trip, reply: Reply) -> None:
        state.hotel = reply.result

    @hotel.compensation
    def cancel_hotel(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "cancel_hotel", {"hotel": state.hotel})

    @step
    def car(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "book_car")

    @car.compensation
    def cancel_car(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "cancel_car")

    @step
    def pay(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "pay")


class Choosy(Process[Trip]):
    """Goes one way or another, skips what is not wanted, and finds a way around a failure."""

    @step(then=["suite", "room", END])
    def look(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "look")

    @look.reply
    def found(self, state: Trip, reply: Reply) -> Any:
        if reply.result == "nothing":
            return END
        return "suite" if state.luxury else self.room

    @step(then="pay", or_else="room")
    def suite(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "book_suite")

    @suite.failure
    def no_suite(self, state: Trip, reply: Reply) -> Any:
        state.log.append(str(reply.error_code))
        return "room"

    @step(then="pay")
    def room(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "book_room")

    @step(then="thank")
    def pay(self, state: Trip) -> SendRequest | None:
        return None if state.paid else SendRequest(DOMAIN, "pay")

    @step
    def thank(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "thank")

    def before_send(self, state: Trip, step: str, request: SendRequest) -> SendRequest:
        return SendRequest(
            request.domain, request.command_type, request.data, priority="high", headers={"step": step}
        )


class Parallel(Process[Trip]):
    """Three at once, then one."""

    @step(fork=["hotel", "car", "guide"])
    def begin(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "begin")

    @step
    def hotel(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "hotel")

    @hotel.compensation
    def undo_hotel(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "undo_hotel")

    @step
    def car(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "car")

    @car.compensation
    def undo_car(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "undo_car")

    @step
    def guide(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "guide")

    @guide.compensation
    def undo_guide(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "undo_guide")

    @step(joins=["hotel", "car", "guide"])
    def confirm(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "confirm")


class Timed(Process[Trip]):
    """Has deadlines: ten seconds for a step, a minute for all."""

    timeout = 60

    @step(timeout=10)
    def hotel(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "hotel")

    @hotel.compensation
    def undo_hotel(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "undo_hotel")

    @step
    def car(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "car")


class Approved(Process[Trip]):
    """Waits for a person's word."""

    @step
    def ask(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "ask")

    @step(timeout=3600)
    def approval(self, state: Trip) -> WaitFor:
        return WaitFor("approved")

    @approval.reply
    def approved(self, state: Trip, reply: Reply) -> None:
        state.log.append(reply.result["by"])

    @step
    def book(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "book")


class Tour(Process[Trip]):
    """Runs another process as a step."""

    @step
    def plan(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "plan")

    @plan.compensation
    def unplan(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "unplan")

    @step
    def trip(self, state: Trip) -> StartProcess:
        return StartProcess(Leg, Trip(to=state.to))

    @trip.reply
    def trip_booked(self, state: Trip, reply: Reply) -> None:
        state.hotel = reply.result


class Leg(Process[Trip]):
    @step
    def hotel(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "leg_hotel")

    @hotel.reply
    def booked(self, state: Trip, reply: Reply) -> None:
        state.hotel = reply.result

    @hotel.compensation
    def undo(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "leg_undo")

    @step
    def pay(self, state: Trip) -> SendRequest:
        return SendRequest(DOMAIN, "leg_pay")

    def result(self, state: Trip) -> str | None:
        return state.hotel


class Sagas:
    """A hand on the processes of a bus: commands end as a test says, replies are routed at once."""

    def __init__(self, bus: Harness, *processes: type[Process[Any]]) -> None:
        self.bus = bus
        self.declarations = declarations_of(processes)
        self.manager = bus.manager_class(bus.bus, processes[0])
        self.worker = bus.worker(DOMAIN)

    def start(self, state: Any = None, **options: Any) -> UUID:
        started: StartProcessResult = self.bus.call(self.manager.start, state or Trip(), **options)
        return started.process_id

    def start_many(self, states: list[Any]) -> list[UUID]:
        return [one.process_id for one in self.bus.call(self.manager.start_many, states)]

    def get(self, process_id: UUID) -> ProcessRecord:
        record: ProcessRecord | None = self.bus.call(self.bus.bus.get_process, process_id)
        assert record is not None, f"there is no process {process_id}"
        return record

    def status(self, process_id: UUID) -> str:
        return str(self.get(process_id).status)

    def audit(self, process_id: UUID) -> list[ProcessEvent]:
        events: list[ProcessEvent] = self.bus.call(self.bus.bus.get_process_audit, process_id)
        return events

    def happened(self, process_id: UUID) -> list[str]:
        """The events of a process in words: kind and step."""
        return [f"{e.event_type} {e.step or ''}".strip() for e in self.audit(process_id)]

    def waiting(self) -> list[str]:
        """The types of the commands that wait for a worker, in order."""
        page = self.bus.query(domain=DOMAIN, status="PENDING")
        return [record.command_type for record in reversed(page)]

    def end(self, command_type: str, result: Any = None, *, seconds: float = 30.0) -> UUID:
        """The next command, which must be of this type, ends; an exception is how it fails."""
        taken = self.bus.take(self.worker, visibility_timeout=seconds)
        assert taken.command.command_type == command_type
        if isinstance(result, BaseException):
            self.bus.call(self.worker.fail, taken, result)
        else:
            self.bus.call(self.worker.complete, taken, result)
        return taken.command.command_id

    def route(self) -> int:
        """Let all replies that are there drive their processes on; returns how many there were."""
        routed = 0
        scope = self.bus.bus.scope
        queues = tuple({declaration.reply_to for declaration in self.declarations.values()})
        while True:
            claim = self.bus.store.claim(ClaimRequest(queues, 100, "test-router", 30.0))
            claimed = self.bus.run(claim).claimed
            if not claimed:
                return routed
            report: RouteReport = self.bus.run(route(scope, self.declarations, claimed, "test-router"))
            routed += report.routed
            self.bus.run(close_open_batches(scope, queues))

    def done(self, command_type: str, result: Any = None) -> UUID:
        """A command ends, and its reply is routed."""
        command_id = self.end(command_type, result)
        self.route()
        return command_id

    def pass_time(self, seconds: float) -> int:
        """Time passes, and deadlines are looked at; returns how many processes were due."""
        self.bus.advance(seconds)
        timers = fire_timers(self.bus.bus.scope, self.declarations, "test-router", 100)
        report: RouteReport = self.bus.run(timers)
        return report.routed
