"""Lifespans: what a worker starts and stops, and what its handlers are provided with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from commandbus.domain.lifecycle import CommandStatus
from commandbus.errors import ConfigurationError, LifespanError
from commandbus.testing.conformance.helpers import AT_ONCE
from commandbus.testing.handlers import Gate
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.waiting import eventually
from commandbus.worker.context import HandlerContext, SyncHandlerContext
from commandbus.worker.handlers import HandlerRegistry
from commandbus.worker.signatures import PROVIDED, Provided

KINDS = pytest.mark.parametrize("kind", ["def", "async def"])


class Client:
    """Something that a lifespan opens and closes."""

    def __init__(self, name: str = "client") -> None:
        self.name = name
        self.is_open = True


class Session(Client):
    pass


def spans(
    registry: HandlerRegistry,
    kind: str,
    *,
    start: Callable[[], Any] = lambda: None,
    stop: Callable[[], Any] = lambda: None,
) -> None:
    """A lifespan that calls `start`, yields what it returns, and calls `stop`."""

    def plain() -> Iterator[Any]:
        yield start()
        stop()

    async def waiting() -> AsyncIterator[Any]:
        await asyncio.sleep(0)
        yield start()
        await asyncio.sleep(0)
        stop()

    registry.lifespan(plain if kind == "def" else waiting)


def run_to_its_end(bus: Harness, registry: HandlerRegistry) -> None:
    """Start a worker that is expected to end by itself; raises what its run() raised."""
    with bus.run_worker(registry) as running:
        running.ended.result(10)


class LifespansSuite:
    @KINDS
    def test_it_is_around_all_runs_of_handlers(self, bus: Harness, kind: str) -> None:
        registry, seen = HandlerRegistry(), list[str]()
        registry.register(DOMAIN, "ship", lambda command, context: seen.append("run"))
        spans(registry, kind, start=lambda: seen.append("start"), stop=lambda: seen.append("stop"))
        ids = [bus.send(), bus.send()]
        with bus.run_worker(registry):
            for command_id in ids:
                bus.wait(command_id)
        assert seen == ["start", "run", "run", "stop"]

    def test_several_start_in_order_and_stop_in_reverse(self, bus: Harness) -> None:
        registry, seen = HandlerRegistry(), list[str]()
        registry.register(DOMAIN, "ship", lambda command, context: None)
        for name, kind in (("a", "def"), ("b", "async def"), ("c", "def")):
            spans(
                registry,
                kind,
                start=partial(seen.append, f"+{name}"),
                stop=partial(seen.append, f"-{name}"),
            )
        with bus.run_worker(registry):
            bus.wait(bus.send())
        assert seen == ["+a", "+b", "+c", "-c", "-b", "-a"]

    @KINDS
    def test_a_handler_is_provided_with_what_it_yields(self, bus: Harness, kind: str) -> None:
        registry, client = HandlerRegistry(), Client("orders")
        spans(registry, kind, start=lambda: {Client: client})

        @registry.handler(DOMAIN, "ship")
        def ship(command: Any, context: SyncHandlerContext, client: Provided[Client]) -> str:
            return f"{client.name} {command.data} {context.provided(Client) is client}"

        @registry.handler(DOMAIN, "count")
        async def count(command: Any, context: HandlerContext, *, client: Provided[Client]) -> str:
            return f"{client.name} {context.provided(Client) is client}"

        with bus.run_worker(registry):
            assert bus.wait(bus.send(data=7)).result == "orders 7 True"
            assert bus.wait(bus.send(DOMAIN, "count")).result == "orders True"

    def test_a_typed_command_is_provided_with_values_that_are_no_payload(self, bus: Harness) -> None:
        registry = HandlerRegistry(DOMAIN)
        spans(registry, "def", start=lambda: {Client: Client("orders")})

        @registry.command
        async def ship(context: HandlerContext, order: int, client: Provided[Client] = PROVIDED) -> str:
            return f"{client.name} {order} {context.provided(Client) is client}"

        @registry.command
        def pack(order: int, *, client: Provided[Client] = PROVIDED, box: str = "small") -> str:
            return f"{client.name} {order} {box}"

        with bus.run_worker(registry):
            shipped, packed = (
                bus.call(bus.bus.send, ship(7)),
                bus.call(bus.bus.send, pack(8, box="big")),
            )
            assert bus.wait(shipped.command_id).result == "orders 7 True"
            assert bus.wait(packed.command_id).result == "orders 8 big"
            assert bus.get(packed.command_id).data == {"order": 8, "box": "big"}

    def test_lifespans_of_all_registries_of_a_worker_run(self, bus: Harness) -> None:
        seen: list[str] = []
        registries = [HandlerRegistry(), HandlerRegistry()]
        for number, registry in enumerate(registries):
            registry.register(DOMAIN, f"type{number}", lambda command, context: None)
            spans(registry, "def", start=partial(seen.append, f"+{number}"))
        worker = bus.worker_class(bus.bus, *registries)
        ended = bus.spawn(worker.run)
        eventually(lambda: worker.is_running)
        bus.call(worker.stop)
        ended.result(10)
        assert seen == ["+0", "+1"]

    def test_a_middleware_provides_a_value_for_one_run(self, bus: Harness) -> None:
        registry, sessions = HandlerRegistry(), list[Session]()
        spans(registry, "def", start=lambda: {Client: Client("shared")})

        @registry.middleware
        def session(command: Any, context: Any) -> Iterator[None]:
            session = Session(f"{context.provided(Client).name}-{len(sessions)}")
            sessions.append(session)
            context.provide(Session, session)
            yield
            session.is_open = False

        @registry.handler(DOMAIN, "ship")
        def ship(command: Any, context: Any, session: Provided[Session]) -> str:
            assert session.is_open
            return session.name

        with bus.run_worker(registry, concurrency=1):
            results = [bus.wait(bus.send()).result for _ in range(2)]
        assert results == ["shared-0", "shared-1"]
        assert not any(session.is_open for session in sessions)

    @KINDS
    def test_a_value_that_is_not_provided_parks_the_command(self, bus: Harness, kind: str) -> None:
        registry = HandlerRegistry()
        spans(registry, "def", start=lambda: {Client: Client()})

        def ship(command: Any, context: Any, session: Provided[Session]) -> None: ...

        async def ship_async(command: Any, context: Any, session: Provided[Session]) -> None: ...

        registry.register(DOMAIN, "ship", ship if kind == "def" else ship_async)
        with bus.run_worker(registry):
            record = bus.wait(bus.send())
        assert (record.status, record.error_code) == (
            CommandStatus.IN_TROUBLESHOOTING_QUEUE,
            "NOT_PROVIDED",
        )
        assert "no Session; it provides Client" in (record.error_message or "")

    @KINDS
    def test_an_error_at_start_ends_the_worker_before_it_claims(self, bus: Harness, kind: str) -> None:
        registry, seen = HandlerRegistry(), list[str]()
        registry.register(DOMAIN, "ship", lambda command, context: seen.append("run"))
        spans(registry, "def", stop=lambda: seen.append("stop of the first"))

        def fail() -> None:
            raise ConnectionError("no answer")

        spans(registry, kind, start=fail, stop=lambda: seen.append("stop of the second"))
        command_id = bus.send()
        with pytest.raises(LifespanError, match=r"at start: ConnectionError: no answer.*nothing"):
            run_to_its_end(bus, registry)
        assert seen == ["stop of the first"]
        assert bus.get(command_id).status is CommandStatus.PENDING

    @KINDS
    def test_an_error_at_stop_is_raised_when_all_others_have_stopped(
        self, bus: Harness, kind: str
    ) -> None:
        registry, seen = HandlerRegistry(), list[str]()
        registry.register(DOMAIN, "ship", lambda command, context: None)
        spans(registry, "def", stop=lambda: seen.append("stop of the first"))

        def fail() -> None:
            raise ConnectionError("cut off")

        spans(registry, kind, stop=fail)
        with (
            pytest.raises(LifespanError, match="failed at stop: ConnectionError: cut off"),
            bus.run_worker(registry),
        ):
            assert bus.wait(bus.send()).status is CommandStatus.COMPLETED
        assert seen == ["stop of the first"]
        assert not bus.call(bus.bus.list_workers)

    @KINDS
    def test_it_stops_after_the_last_handler(self, bus: Harness, kind: str) -> None:
        registry, client = HandlerRegistry(), Client()

        def close() -> None:
            client.is_open = False

        spans(registry, kind, start=lambda: {Client: client}, stop=close)
        command_id = bus.send()
        with Gate() as gate:

            def ship(command: Any, context: Any, client: Provided[Client]) -> bool:
                gate(command, context)
                return client.is_open

            registry.register(DOMAIN, "ship", ship)
            with bus.run_worker(registry) as running:
                gate.wait_for(1)
                stopping = bus.spawn(running.worker.stop)
                gate.open()
                stopping.result(10)
        assert bus.get(command_id).result is True
        assert not client.is_open

    @KINDS
    def test_it_begins_again_with_a_restart(self, bus: Harness, kind: str) -> None:
        registry, seen = HandlerRegistry(), list[str]()
        registry.register(DOMAIN, "ship", lambda command, context: seen.append("run"))
        spans(registry, kind, start=lambda: seen.append("start"), stop=lambda: seen.append("stop"))
        with bus.run_worker(registry, retry_policy=AT_ONCE) as running:
            bus.wait(bus.send())
            running.worker.request_restart("in the test")
            bus.wait(bus.send())
        assert seen == ["start", "run", "stop", "start", "run", "stop"]

    @KINDS
    @pytest.mark.parametrize("given", [7, "name"])
    def test_it_yields_nothing_or_a_mapping(self, bus: Harness, kind: str, given: Any) -> None:
        registry, seen = HandlerRegistry(), list[str]()
        registry.register(DOMAIN, "ship", lambda command, context: None)
        spans(registry, kind, start=lambda: given, stop=lambda: seen.append("stop"))
        with pytest.raises(ConfigurationError, match=rf"a {type(given).__name__}, not a mapping"):
            run_to_its_end(bus, registry)
        assert seen == ["stop"]

    @KINDS
    def test_it_yields_once(self, bus: Harness, kind: str) -> None:
        def none() -> Iterator[None]:
            yield from ()

        async def none_async() -> AsyncIterator[None]:
            for _ in ():
                yield

        registry = HandlerRegistry()
        registry.register(DOMAIN, "ship", lambda command, context: None)
        registry.lifespan(none if kind == "def" else none_async)
        with pytest.raises(ConfigurationError, match=r"none.*did not yield"):
            run_to_its_end(bus, registry)

    def test_what_is_not_a_generator_without_parameters_is_refused(self) -> None:
        def wanting(name: str) -> Iterator[None]:
            yield

        registry = HandlerRegistry()
        with pytest.raises(ConfigurationError, match="generator function with one yield"):
            registry.lifespan(lambda: None)
        with pytest.raises(ConfigurationError, match=r"wanting.*without arguments.*'name'"):
            registry.lifespan(wanting)  # type: ignore[type-var]

    def test_a_parameter_that_is_neither_provided_nor_known_is_refused(self) -> None:
        def ship(command: Any, context: Any, client: Client) -> None: ...

        def by_position(command: Any, context: Any, client: Provided[Client], /) -> None: ...

        registry = HandlerRegistry()
        with pytest.raises(ConfigurationError, match=r"exactly \(command, context\)"):
            registry.register(DOMAIN, "ship", ship)
        with pytest.raises(ConfigurationError, match="client by position only"):
            registry.register(DOMAIN, "ship", by_position)
