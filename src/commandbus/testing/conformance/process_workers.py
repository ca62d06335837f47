"""Processes of a registry: workers and `drain` drive them on, and `why` says what they wait for."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

from commandbus.domain.command import SendRequest
from commandbus.domain.process.chain import Chain
from commandbus.domain.process.declaration import Process, step
from commandbus.domain.process.values import ProcessStatus
from commandbus.errors import (
    BusinessRuleException,
    CommandBusError,
    CommandNotFoundError,
    ConfigurationError,
    DuplicateProcessError,
    InvalidArgumentError,
)
from commandbus.testing.conformance.helpers import registry_of, require
from commandbus.testing.draining import drain
from commandbus.testing.harness import Harness
from commandbus.testing.sagas import DOMAIN, Approved, BookTrip, Sagas, Timed, Trip
from commandbus.testing.waiting import eventually
from commandbus.worker.handlers import HandlerRegistry


def travelling(*processes: type[Process[Any]]) -> HandlerRegistry:
    """Handlers for all steps of a trip, and processes beside them."""
    registry = registry_of(
        DOMAIN,
        book_hotel=lambda command, context: f"{command.data['to']} Palace",
        book_car=lambda command, context: None,
        pay=lambda command, context: None,
    )
    for process in processes:
        registry.process(process)
    return registry


def start(bus: Harness, process: type[Process[Any]] = BookTrip) -> UUID:
    manager = bus.manager_class(bus.bus, process)
    process_id: UUID = bus.call(manager.start, Trip(to="Oslo")).process_id
    return process_id


def why(bus: Harness, process_id: UUID) -> Any:
    return bus.call(bus.bus.why, process_id)


def drained(bus: Harness, registry: HandlerRegistry) -> list[str]:
    """The types of what a drain has run."""
    if bus.runtime == "threads":
        return [record.command_type for record in drain(bus.bus, registry)]

    async def awaiting() -> Any:
        return await drain(bus.bus, registry)

    return [record.command_type for record in bus.call(awaiting)]


class ProcessWorkersSuite:
    def test_a_worker_drives_the_processes_of_its_registry(self, bus: Harness) -> None:
        with bus.run_worker(travelling(BookTrip), DOMAIN):
            process_id = start(bus)
            record = bus.call(bus.bus.wait_process, process_id, timeout=10)
        assert record.status is ProcessStatus.COMPLETED
        assert record.state["hotel"] == "Oslo Palace"

    def test_its_router_is_seen_while_it_runs_and_gone_afterwards(self, bus: Harness) -> None:
        def routers() -> list[Any]:
            return [one for one in bus.call(bus.bus.list_workers) if one.processes]

        with bus.run_worker(travelling(BookTrip), DOMAIN):
            eventually(lambda: [one.processes for one in routers()] == [("book_trip",)])
        assert routers() == []

    def test_a_restart_of_the_worker_takes_its_router_along(self, bus: Harness) -> None:
        with bus.run_worker(travelling(BookTrip), DOMAIN) as running:
            bus.call(bus.bus.wait_process, start(bus), timeout=10)
            running.worker.request_restart("in the test")
            record = bus.call(bus.bus.wait_process, start(bus), timeout=10)
        assert record.status is ProcessStatus.COMPLETED

    def test_drain_drives_them_to_their_end(self, bus: Harness) -> None:
        process_id = start(bus)
        assert drained(bus, travelling(BookTrip)) == ["book_hotel", "book_car", "pay"]
        record = bus.call(bus.bus.get_process, process_id)
        assert record.status is ProcessStatus.COMPLETED

    def test_drain_sees_deadlines_that_have_passed(self, bus: Harness) -> None:
        process_id = start(bus, Timed)
        bus.advance(3600)
        registry = HandlerRegistry("other")
        registry.process(Timed)
        drained(bus, registry)
        assert bus.call(bus.bus.get_process, process_id).error.code in (
            "STEP_TIMEOUT",
            "PROCESS_TIMEOUT",
        )

    def test_why_says_that_the_command_of_a_step_is_gone(self, bus: Harness) -> None:
        process_id = start(bus)
        bus.call(bus.bus.purge, DOMAIN)
        assert "'hotel' waits for command" in why(bus, process_id).summary
        assert "which does not exist" in why(bus, process_id).summary

    def test_a_step_whose_command_has_a_unique_key_is_refused(self, bus: Harness) -> None:
        registry = HandlerRegistry(DOMAIN)

        @registry.command(unique_key=lambda nights: "k")
        def reserve(nights: int) -> None: ...

        class Reserving(Process[Trip]):
            process_type = "reserving"

            @step
            def book(self, state: Trip) -> SendRequest:
                return reserve(1)

        bus.call(bus.bus.send, reserve(2))
        with pytest.raises(CommandBusError, match=r"unique_key.*options\(unique_key=None\)"):
            start(bus, Reserving)

    def test_why_says_that_no_router_runs(self, bus: Harness) -> None:
        process_id = start(bus)
        answer = why(bus, process_id)
        assert [reason.code for reason in answer.reasons] == ["NO_ROUTER", "STEP"]
        assert "registry.process" in answer.summary
        assert "'hotel' waits for command" in answer.summary
        assert "no live worker serves domain 'travel'" in answer.summary
        assert (answer.command_id, answer.status) == (str(process_id), "RUNNING")

    def test_why_says_what_a_process_waits_for(self, bus: Harness) -> None:
        sagas = Sagas(bus, Approved)
        process_id = sagas.start(Trip())
        sagas.done("ask")
        with bus.run_router(Approved):
            eventually(lambda: [reason.code for reason in why(bus, process_id).reasons] == ["STEP"])
            assert "waits for the signal 'approved'" in why(bus, process_id).summary

    def test_why_says_how_a_process_ended(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start(Trip())
        sagas.done("book_hotel", "Grand")
        sagas.done("book_car")
        sagas.done("pay")
        (reason,) = why(bus, process_id).reasons
        assert (reason.code, reason.text.split()[0]) == ("ENDED", "COMPLETED")

    def test_an_id_of_neither_is_not_found(self, bus: Harness) -> None:
        with pytest.raises(CommandNotFoundError):
            why(bus, UUID(int=7))

    def test_what_cannot_be_registered_is_refused(self, bus: Harness) -> None:
        registry = travelling(BookTrip)
        assert registry.process(BookTrip) is BookTrip
        other = type("Other", (BookTrip,), {"process_type": "book_trip"})
        with pytest.raises(ConfigurationError, match="Two processes are called 'book_trip'"):
            registry.process(other)
        with pytest.raises(ConfigurationError):
            registry.process(Trip)  # type: ignore[type-var]


class Letter(msgspec.Struct, omit_defaults=True):
    to: str
    text: str = ""


def chained(bus: Harness, *requests: SendRequest, **options: Any) -> UUID:
    process_id: UUID = bus.call(bus.bus.chain, *requests, **options).process_id
    return process_id


def parts(fails: Exception | None = None) -> HandlerRegistry:
    """Handlers for the commands of a chain, over two domains."""

    def charge(command: Any, context: Any) -> dict[str, Any]:
        if fails is not None:
            raise fails
        return {"receipt": command.data["order"]}

    registry = registry_of("payments", charge=charge)
    registry.register("mail", "send", lambda command, context: command.data)
    registry.process(Chain)
    return registry


class ChainSuite:
    def test_commands_run_one_after_another(self, bus: Harness) -> None:
        process_id = chained(
            bus,
            SendRequest("payments", "charge", {"order": 7}, priority="high"),
            SendRequest("mail", "send", {"to": "ann"}, tags=["receipt"]),
        )
        assert drained(bus, parts()) == ["charge", "send"]
        record = bus.call(bus.bus.get_process, process_id)
        assert record.status is ProcessStatus.COMPLETED
        assert record.state["results"] == [{"receipt": 7}, {"to": "ann"}]
        (sent,) = bus.query(domain="mail")
        assert (sent.tags, sent.correlation_id) == (("receipt",), process_id)

    def test_results_are_passed_on(self, bus: Harness) -> None:
        requests = [SendRequest("payments", "charge", {"order": 7}), SendRequest("mail", "send")]
        process_id = chained(bus, *requests, result_as="previous")
        with bus.run_worker(parts(), ["payments", "mail"]):
            record = bus.call(bus.bus.wait_process, process_id, timeout=10)
        assert record.state["results"][-1] == {"previous": {"receipt": 7}}

    def test_every_command_keeps_its_lifetime_tags_and_required_tags(self, bus: Harness) -> None:
        require(bus, "gates")
        options: Any = {"tags": iter(["receipt"]), "requires": iter(["gpu"]), "expires": 20}
        chained(bus, SendRequest("mail", "send", **options))
        (sent,) = bus.query(domain="mail")
        assert (sent.tags, sent.requires) == (("receipt",), ("gpu",))
        assert sent.expires_at is not None
        assert (sent.expires_at - sent.due_at).total_seconds() == pytest.approx(20, abs=1)

    def test_it_ends_with_the_first_command_that_fails(self, bus: Harness) -> None:
        requests = [SendRequest("payments", "charge", {"order": 7}), SendRequest("mail", "send")]
        process_id = chained(bus, *requests)
        assert drained(bus, parts(BusinessRuleException("NO_FUNDS"))) == ["charge"]
        record = bus.call(bus.bus.get_process, process_id)
        assert (record.status, record.error.code) == (ProcessStatus.FAILED, "NO_FUNDS")
        assert list(bus.query(domain="mail")) == []

    def test_a_repeated_chain_is_refused(self, bus: Harness) -> None:
        request, process_id = SendRequest("mail", "send"), UUID(int=7)
        assert chained(bus, request, process_id=process_id) == process_id
        with pytest.raises(DuplicateProcessError):
            chained(bus, request, process_id=process_id)

    def test_what_cannot_be_a_chain_is_refused(self, bus: Harness) -> None:
        request = SendRequest("mail", "send")
        cases: list[tuple[list[Any], str]] = [
            ([], "1 to 100 commands, not 0"),
            ([request] * 101, "1 to 100 commands, not 101"),
            ([SendRequest("mail", "send", unique_key="k")], "cannot have unique_key="),
            (["mail"], "takes SendRequest objects"),
        ]
        for wrong, message in cases:
            with pytest.raises(InvalidArgumentError, match=message):
                chained(bus, *wrong)
        with pytest.raises(InvalidArgumentError, match="payloads that are objects"):
            chained(bus, request, SendRequest("mail", "send", [1]), result_as="previous")

        def post(to: str, text: str = "") -> None: ...

        typed = HandlerRegistry("mail").command(post)
        with pytest.raises(
            InvalidArgumentError, match=r"'typo' is no parameter of mail\.post.*to, text"
        ):
            chained(bus, request, typed("Ann"), result_as="typo")
        assert bus.call(bus.bus.count_processes) == []
        chained(bus, request, typed("Ann"), result_as="text")

    def test_a_result_may_go_into_a_field_that_a_model_leaves_out(self, bus: Harness) -> None:
        def post(letter: Letter) -> None: ...

        typed = HandlerRegistry("mail").command(post)
        made = chained(bus, SendRequest("mail", "send"), typed(Letter("Ann")), result_as="text")
        assert bus.call(bus.bus.get_process, made) is not None
