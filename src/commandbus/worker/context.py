"""The context of a handler: facts about its run, and the operations that it may call.

An `async def` handler gets a HandlerContext whose methods are awaited; a `def` handler gets a
SyncHandlerContext whose methods block. That depends on the handler, not on the runtime.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload
from uuid import UUID

from commandbus.domain import payload
from commandbus.domain.command import SEND_DEFAULTS, CommandRecord, SendOptions, SendRequest, SendResult
from commandbus.domain.ids import as_id
from commandbus.domain.moment import Duration, as_seconds
from commandbus.domain.names import as_text
from commandbus.domain.outcome import Succeeded, as_result
from commandbus.domain.shown import shows_options
from commandbus.errors import (
    CommandCanceled,
    InvalidArgumentError,
    InvalidOperationError,
    LeaseLost,
    PermanentCommandError,
)
from commandbus.store.op import Op, autocommit
from commandbus.store.port import Store
from commandbus.store.records import CancelRequest, Claimed, CommandFilter, Settlement
from commandbus.worker.completing import Completion, complete_within
from commandbus.worker.settlements import settlement_of

if TYPE_CHECKING:
    import psycopg

    # What a handler is given is made by a runtime; only its types are needed here.
    from commandbus.runtimes.asyncio.bus import HandlerBus
    from commandbus.runtimes.threads.bus import SyncHandlerBus
    from commandbus.worker.transactional import HandlerTransaction

R = TypeVar("R")
T = TypeVar("T")
BATCH_PAGE = 1_000


class HandlerServices:
    """What all handlers of one kind in a worker share."""

    __slots__ = (
        "bus",
        "holds",
        "outcome_of",
        "provided",
        "requests",
        "session",
        "store",
        "within",
        "worker",
    )

    def __init__(
        self,
        store: Store,
        session: Any,
        worker: str,
        requests: dict[int, CancelRequest],
        bus: Any = None,
        within: Callable[[Any], Any] | None = None,
        holds: Callable[[int], bool] = lambda _: True,
        provided: Mapping[Any, Any] | None = None,
        outcome_of: Callable[[Claimed, Any], Succeeded] = lambda _, value: as_result(
            value, payload.encode
        ),
    ) -> None:
        self.store = store
        self.session = session
        self.worker = worker
        self.requests = requests
        """Commands, by sequence, whose cancellation was requested while they run."""
        self.bus = bus
        """Sends outside of any transaction of a handler."""
        self.within = within
        """Makes a session inside a transaction on a connection of the handler's own; None where there
        is no store."""
        self.holds = holds
        """Whether a lease is valid as far as this worker knows, without asking the store."""
        self.provided = {} if provided is None else provided
        """What the lifespans of the worker have yielded."""
        self.outcome_of = outcome_of
        """A result as it is kept: of a typed command, by its contract."""


class _Context:
    __slots__ = (
        "_began",
        "_claimed",
        "_own",
        "_recorded",
        "_services",
        "_timeout",
        "_unit",
        "completion",
        "max_attempts",
    )

    _timeout: float | None
    """How long a run in a child process may take."""

    def __init__(self, claimed: Claimed, max_attempts: int, services: HandlerServices) -> None:
        self._claimed = claimed
        self._services = services
        self._recorded: dict[str, str] | None = None
        self._unit: HandlerTransaction | None = None
        self._own: dict[Any, Any] | None = None
        self._began = time.perf_counter()
        self.completion: Completion | None = None
        """What the handler has written in a transaction of its own."""
        self.max_attempts = max_attempts

    @property
    def worker(self) -> str:
        """The name of the worker that runs the handler."""
        return self._services.worker

    @property
    def command_id(self) -> UUID:
        """The id of the command, the same for every delivery: an idempotency key for effects."""
        return self._claimed.command_id

    @property
    def correlation_id(self) -> UUID:
        """The id of the flow that the command belongs to."""
        return self._claimed.correlation_id

    @property
    def attempt(self) -> int:
        """Which delivery this is, from 1. Releases do not count, crashes do."""
        return self._claimed.attempt

    @property
    def crashes(self) -> int:
        """How many workers died while they had this command."""
        return self._claimed.crashes

    @property
    def is_last_attempt(self) -> bool:
        return self.attempt - self.crashes >= self.max_attempts

    @property
    def fence(self) -> int:
        """A number that grows with every delivery: write it beside your own effects, and refuse
        those with a smaller one, to keep out a worker that lost its lease without knowing."""
        return self._claimed.lease_id

    @property
    def canceled(self) -> bool:
        """Whether a cancellation was requested: end soon, with `raise_if_canceled()`."""
        return self._claimed.cancel is not None or self._claimed.seq in self._services.requests

    def raise_if_canceled(self) -> None:
        """Raise CommandCanceled when a cancellation was requested. Left uncaught it ends the
        command as CANCELED, with the reason that was given."""
        request = self._claimed.cancel or self._services.requests.get(self._claimed.seq)
        if request is not None:
            raise CommandCanceled(request.reason)

    def provided(self, kind: type[T]) -> T:
        """The value that this worker provides for a type: by `provide` during this run, else by a
        lifespan. Raises PermanentCommandError when there is none."""
        own, shared = self._own or {}, self._services.provided
        found = own[kind] if kind in own else shared.get(kind, _MISSING)
        if found is _MISSING:
            known = ", ".join(sorted(_name(one) for one in {**shared, **own})) or "nothing"
            raise PermanentCommandError(
                "NOT_PROVIDED",
                f"This worker provides no {_name(kind)}; it provides {known}. Yield one from a "
                "@registry.lifespan, or call context.provide in a middleware; then retry.",
            )
        value: T = found
        return value

    def provide(self, kind: type[T], value: T) -> None:
        """Provide a value for this run: for middleware, such as one that opens a session for each
        command. It comes before that of a lifespan."""
        self._own = {**(self._own or {}), kind: value}

    def _own_connection(self) -> Any:
        return self._transactional("connection").connection

    def _own_bus(self) -> Any:
        return self._services.bus if self._unit is None else self._unit.bus

    def _sending(self, domain: str | SendRequest[Any], options: SendOptions) -> Any:
        """The bus to send with; `options` get the flow of the command. Raises LeaseLost."""
        claimed = self._claimed
        if self._unit is None and not self._services.holds(claimed.lease_id):
            raise self._lost()
        request = domain if isinstance(domain, SendRequest) else None
        if options.get("correlation_id") is None and (
            request is None or request.correlation_id is None
        ):
            options["correlation_id"] = claimed.correlation_id
        if options.get("causation_id") is None and (request is None or request.causation_id is None):
            options["causation_id"] = claimed.command_id
        return self._own_bus()

    def _transactional(self, what: str) -> HandlerTransaction:
        if self._unit is None:
            raise InvalidOperationError(
                f"context.{what} is for transactional handlers; register this one with "
                "transactional=True, or use a connection of your own."
            )
        return self._unit

    def _completing(self, result: Any) -> Op[None]:
        """Record the outcome on a connection of the handler's own."""
        if self._unit is not None:
            raise InvalidOperationError(
                "A transactional handler returns its result, which commits with its transaction; "
                "context.complete is for handlers that are registered without transactional=True."
            )
        if self._services.within is None:
            raise InvalidOperationError("context.complete needs a command that a worker has taken.")
        ran = int((time.perf_counter() - self._began) * 1_000_000)
        settlement = settlement_of(self._claimed, self._services.outcome_of(self._claimed, result), ran)
        return self._complete(settlement)

    def _complete(self, settlement: Settlement) -> Op[None]:
        self.completion = yield from complete_within(self._services.store, settlement, self._lost())

    def _batch_results(self) -> Op[list[CommandRecord[Any]]]:
        """All commands of the batch whose completion this is, in order of sending."""
        headers = payload.decode(self._claimed.headers) if self._claimed.headers else {}
        if "batch_id" not in headers or "batch_status" not in headers:
            raise InvalidOperationError(
                "context.batch_results is for the command that a batch sends as its on_complete; this "
                f"{self._claimed.command_type!r} is not one."
            )
        found: list[CommandRecord[Any]] = []
        batch_id = as_id(headers["batch_id"], "batch_id")
        before: int | None = None
        while True:
            wanted = CommandFilter(batch_id=batch_id, before=before, limit=BATCH_PAGE)
            page = yield from self._services.store.query(wanted)
            found += page
            if len(page) < BATCH_PAGE:
                return found[::-1]
            before = page[-1].sequence

    @autocommit
    def _extend(self, seconds: Duration) -> Op[None]:
        wanted = as_seconds(seconds, "seconds", minimum=0.001)
        if (yield from self._services.store.renew([self._claimed.lease_id], wanted)):
            raise self._lost()

    @autocommit
    def _report(self, percent: float, message: str) -> Op[None]:
        if not 0 <= percent <= 100:
            raise InvalidArgumentError(f"percent must be between 0 and 100, not {percent!r}.")
        text = as_text(message, "message", longest=500) if message else ""
        claimed, store = self._claimed, self._services.store
        if not (yield from store.report_progress(claimed.seq, claimed.lease_id, float(percent), text)):
            raise self._lost()

    def _look_up(self, name: str) -> Op[str | None]:
        """The recorded result of a step; all of them are read with the first one."""
        checked = as_text(name, "name of the step", longest=100)
        if self._recorded is None:
            self._recorded = yield from self._services.store.recorded_steps(self._claimed.seq)
        return self._recorded.get(checked)

    @autocommit
    def _record(self, name: str, value: Any) -> Op[Any]:
        """Keep the result of a step, and see it as a replay would."""
        encoded = payload.encode(value, what=f"result of step {name!r}")
        claimed = self._claimed
        if not (
            yield from self._services.store.record_step(claimed.seq, claimed.lease_id, name, encoded)
        ):
            raise self._lost()
        assert self._recorded is not None
        self._recorded[name] = encoded
        return payload.decode(encoded)

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"The lease on command {self._claimed.command_id} is gone; another worker may run it. "
            "Stop here: nothing that this attempt reports will be recorded."
        )


_MISSING: Any = object()


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)


class HandlerContext(_Context):
    """For `async def` handlers."""

    __slots__ = ()

    @property
    def bus(self) -> HandlerBus:
        """A bus for the handler. In a transactional handler it is inside the transaction: what it
        sends exists when, and only when, the command completes. Otherwise it sends at once."""
        bus: HandlerBus = self._own_bus()
        return bus

    @property
    def connection(self) -> psycopg.AsyncConnection[Any]:
        """The connection that a transactional handler's effects belong on. Do not commit it: it is
        committed with the outcome."""
        connection: psycopg.AsyncConnection[Any] = self._own_connection()
        return connection

    async def extend_visibility(self, seconds: Duration) -> None:
        """Keep the command for at least `seconds` from now. Raises LeaseLost when it is too late."""
        await self._services.session.run(self._extend(seconds))

    @overload
    async def send(
        self, request: SendRequest[R], /, **options: Unpack[SendOptions]
    ) -> SendResult[R]: ...
    @overload
    async def send(
        self, domain: str, command_type: str, data: Any = None, **options: Unpack[SendOptions]
    ) -> SendResult[Any]: ...
    @shows_options(SEND_DEFAULTS)
    async def send(
        self,
        domain: str | SendRequest[Any],
        command_type: str | None = None,
        data: Any = None,
        **options: Unpack[SendOptions],
    ) -> SendResult[Any]:
        """Send a command that this one leads to. The options are those of `CommandBus.send`; the
        correlation id, the causation id and the trace are those of this command, unless given.

        In a transactional handler it is sent when, and only when, this command completes. In any
        other it is sent at once, and once more when the handler runs again: give it a `command_id`
        or a `unique_key` of its own to have one. Raises LeaseLost when the lease is known to be gone.
        """
        bus = self._sending(domain, options)
        sent: SendResult[Any] = await bus.send(domain, command_type, data, **options)
        return sent

    async def complete(self, result: Any = None, *, within: Any) -> None:
        """Record the result of this command in a transaction of your own: it commits with your
        effects, and the worker does not record it again. `within` is what `CommandBus.within` takes: a
        connection or session on the database of the bus, inside a transaction.

        Call it last, then commit, then return; what the handler returns is ignored. After a rollback
        it may be called again, in another transaction. Without a commit nothing is recorded: an
        exception is judged as usual, and a handler that returns all the same has failed with
        NOT_COMMITTED. Raises LeaseLost when the lease is gone (let it undo your
        transaction), ConfigurationError for another database, PayloadError for a result that is no
        JSON.
        """
        op = self._completing(result)
        assert self._services.within is not None
        await self._services.within(within).run(op)

    async def batch_results(self) -> list[CommandRecord[Any]]:
        """In the handler of a batch's `on_complete`: the records of all its commands, in order of
        sending, each with its status, result and error."""
        records: list[CommandRecord[Any]] = await self._services.session.run(
            self._batch_results(), read=True
        )
        return records

    async def progress(self, percent: float, message: str = "") -> None:
        """Say how far the command is, for its record. Raises LeaseLost when it is too late."""
        await self._services.session.run(self._report(percent, message))

    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, `def` or `async def`, and record its result under `name`: when the handler
        runs again, after a crash or a retry, the recorded result is returned and nothing is called.

        The result is JSON, and seen as such the first time too. Raises LeaseLost when it is too late
        to record it. A crash between the call and the record calls it again.
        """
        known = await self._services.session.run(self._look_up(name), read=True)
        if known is not None:
            return payload.decode(known)
        value = function(*args, **kwargs)
        if inspect.isawaitable(value):
            value = await value
        return await self._services.session.run(self._record(name, value))


class SyncHandlerContext(_Context):
    """For `def` handlers."""

    __slots__ = ()

    @property
    def bus(self) -> SyncHandlerBus:
        """A bus for the handler, whose methods block. In a transactional handler it is inside the
        transaction: what it sends exists when, and only when, the command completes. Otherwise it
        sends at once."""
        bus: SyncHandlerBus = self._own_bus()
        return bus

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """The connection that a transactional handler's effects belong on. Do not commit it: it is
        committed with the outcome."""
        connection: psycopg.Connection[Any] = self._own_connection()
        return connection

    def extend_visibility(self, seconds: Duration) -> None:
        """Keep the command for at least `seconds` from now. Raises LeaseLost when it is too late."""
        self._services.session.run(self._extend(seconds))

    @overload
    def send(self, request: SendRequest[R], /, **options: Unpack[SendOptions]) -> SendResult[R]: ...
    @overload
    def send(
        self, domain: str, command_type: str, data: Any = None, **options: Unpack[SendOptions]
    ) -> SendResult[Any]: ...
    @shows_options(SEND_DEFAULTS)
    def send(
        self,
        domain: str | SendRequest[Any],
        command_type: str | None = None,
        data: Any = None,
        **options: Unpack[SendOptions],
    ) -> SendResult[Any]:
        """Send a command that this one leads to. The options are those of `SyncCommandBus.send`; the
        correlation id, the causation id and the trace are those of this command, unless given.

        In a transactional handler it is sent when, and only when, this command completes. In any
        other it is sent at once, and once more when the handler runs again: give it a `command_id`
        or a `unique_key` of its own to have one. Raises LeaseLost when the lease is known to be gone.
        """
        bus = self._sending(domain, options)
        sent: SendResult[Any] = bus.send(domain, command_type, data, **options)
        return sent

    def complete(self, result: Any = None, *, within: Any) -> None:
        """Record the result of this command in a transaction of your own: it commits with your
        effects, and the worker does not record it again. `within` is what `SyncCommandBus.within`
        takes: a connection or session on the database of the bus, inside a transaction.

        Call it last, then commit, then return; what the handler returns is ignored. After a rollback
        it may be called again, in another transaction. Without a commit nothing is recorded: an
        exception is judged as usual, and a handler that returns all the same has failed with
        NOT_COMMITTED. Raises LeaseLost when the lease is gone (let it undo your
        transaction), ConfigurationError for another database, PayloadError for a result that is no
        JSON.
        """
        op = self._completing(result)
        assert self._services.within is not None
        self._services.within(within).run(op)

    def batch_results(self) -> list[CommandRecord[Any]]:
        """In the handler of a batch's `on_complete`: the records of all its commands, in order of
        sending, each with its status, result and error."""
        records: list[CommandRecord[Any]] = self._services.session.run(self._batch_results(), read=True)
        return records

    def progress(self, percent: float, message: str = "") -> None:
        """Say how far the command is, for its record. Raises LeaseLost when it is too late."""
        self._services.session.run(self._report(percent, message))

    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function and record its result under `name`: when the handler runs again, after a
        crash or a retry, the recorded result is returned and nothing is called.

        The result is JSON, and seen as such the first time too. Raises LeaseLost when it is too late
        to record it. A crash between the call and the record calls it again.
        """
        known = self._services.session.run(self._look_up(name), read=True)
        if known is not None:
            return payload.decode(known)
        return self._services.session.run(self._record(name, function(*args, **kwargs)))
