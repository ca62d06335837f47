"""From a claimed command to a call, and from how the call ended to a settlement.

Runtimes make the call; everything before and after it is here, once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import msgspec

from commandbus.domain import payload
from commandbus.domain.breaker import denial
from commandbus.domain.breaker_board import BreakerBoard
from commandbus.domain.cause import running
from commandbus.domain.command import Command
from commandbus.domain.failure import Failure, FailureKind, Origin, set_origin
from commandbus.domain.misfit import describe_misfit
from commandbus.domain.moment import SECOND
from commandbus.domain.outcome import (
    LEASE_GONE,
    Canceled,
    Outcome,
    Parked,
    Rejected,
    Released,
    RetryLater,
    Succeeded,
    decide_failure,
    decide_stopped,
    decide_unknown_handler,
)
from commandbus.domain.retry import RETRY_HEADER, RetryPolicy, policy_of
from commandbus.errors import (
    ConfigurationError,
    PayloadError,
    PermanentCommandError,
    PoolExhausted,
    TransientCommandError,
)
from commandbus.store.records import CancelRequest, Claimed, Settlement, SettleReport
from commandbus.store.session import Demand, Engine, TransactionEnded
from commandbus.worker.context import HandlerContext, HandlerServices, SyncHandlerContext
from commandbus.worker.encoding import command_of_claimed, result_of, undecodable
from commandbus.worker.fates import CaughtException, log_fate
from commandbus.worker.handlers import Handler, HandlerRegistry
from commandbus.worker.health import HealthStatus
from commandbus.worker.isolation.calling import Children, in_child
from commandbus.worker.isolation.verdicts import ChildEnded, End
from commandbus.worker.keeper import LeaseKeeper
from commandbus.worker.middleware import Middleware, around, around_async, check_layers
from commandbus.worker.recorder import FlightRecorder
from commandbus.worker.settlements import completed, settlement_of
from commandbus.worker.tracing import Tracing
from commandbus.worker.transactional import HandlerResult, in_async_transaction, in_transaction

logger = logging.getLogger("commandbus.worker")

LAST_EXCEPTIONS_MAX = 100

_at_work: ContextVar[Execution | None] = ContextVar("commandbus_at_work", default=None)
"""The worker whose handler runs: set once in each slot, of whose context every run gets a copy."""


class Call(msgspec.Struct, frozen=True, gc=False):
    """A handler, its arguments, and what will be needed to judge how it ends."""

    claimed: Claimed
    handler: Handler
    command: Command[Any]
    context: HandlerContext | SyncHandlerContext
    timeout: float | None
    """How long this run may take: what the handler declares, or what is left of its total."""
    in_child: bool = False
    """It ends by itself when its time is over, or when its child process is killed."""


class Execution:
    def __init__(
        self,
        engine: Engine,
        registry: HandlerRegistry,
        worker: str,
        *,
        policy: RetryPolicy | None,
        max_attempts: int,
        breakers: BreakerBoard,
        demand: Demand,
        health: HealthStatus,
        middleware: Sequence[Middleware] = (),
        bus_over: Callable[[Any, bool, bool], Any] | None = None,
        settled: Callable[[SettleReport], None] | None = None,
    ) -> None:
        self.engine = engine
        self.demand = demand
        self.requests: dict[int, CancelRequest] = {}
        self.keeper: LeaseKeeper | None = None
        self.recorder: FlightRecorder | None = None
        self._children: Children | None = None
        self.provided: dict[Any, Any] = {}
        """What the lifespans of this worker provide, while it runs."""
        self.own_transactions = False
        """Whether handlers were seen that complete commands in transactions of their own."""
        self._health = health
        self._middleware = tuple(middleware)
        self._bus_over = bus_over
        self._settled = settled
        self._surrounded: dict[int, Handler] = {}
        self._services = self._services_for(worker, engine.session, is_async=False)
        self._async_services = self._services_for(worker, engine.async_session, is_async=True)
        self._registry = registry
        self.check_middleware()
        self._policy = policy
        self._max_attempts = max_attempts
        self._breakers = breakers
        self._tracing: Tracing | None = None
        self._wraps: list[Callable[[Handler], Handler]] = []
        self._wrapped: dict[tuple[str, str, bool], Handler] = {}
        self.last_exceptions: deque[CaughtException] = deque(maxlen=LAST_EXCEPTIONS_MAX)

    def _services_for(self, worker: str, session: Any, *, is_async: bool) -> HandlerServices:
        bus = None if self._bus_over is None else self._bus_over(session, is_async, False)
        engine = self.engine
        within = engine.within_async if is_async else engine.within
        return HandlerServices(
            engine.store,
            session,
            worker,
            self.requests,
            bus,
            within,
            self._holds,
            self.provided,
            self.outcome_of,
        )

    def outcome_of(self, claimed: Claimed, result: Any) -> Succeeded:
        """A result as it is kept. Raises PayloadError."""
        return result_of(self._registry.get(claimed.domain, claimed.command_type), result)

    def check_middleware(self) -> None:
        """Raises ConfigurationError for middleware that cannot be around a handler."""
        for handler in self._registry:
            check_layers((*handler.layers, *self._middleware), handler)

    def _holds(self, lease_id: int) -> bool:
        return self.keeper is None or self.keeper.holds(lease_id)

    def isolate(self, children: Children | None) -> None:
        """Run handlers with isolation="process" there; without, in this process."""
        self._children = children
        self._surrounded.clear()
        self._wrapped.clear()

    def trace(self, tracing: Tracing) -> None:
        """Follow the traces that commands carry, from the next run on."""
        self._tracing = tracing
        self._wrapped.clear()

    def enter_slot(self) -> None:
        """To be called by each slot in its own context, before its first run."""
        _at_work.set(self)
        if self._tracing is not None:
            self._tracing.enter()

    def in_handler(self) -> bool:
        """Whether the caller is a handler of this worker, or something that it called."""
        return _at_work.get() is self

    def wrap_handlers(self, wrap: Callable[[Handler], Handler]) -> None:
        """Call every handler through a wrapper from now on; the last one given is outermost."""
        self._wraps.append(wrap)
        self._wrapped.clear()

    def _around(self, handler: Handler, traced: bool) -> Handler:
        key = (handler.domain, handler.command_type, traced)
        found = self._wrapped.get(key)
        if found is None:
            found = handler
            if traced and self._tracing is not None:
                found = self._tracing.wrap(found)
            for wrap in self._wraps:
                found = wrap(found)
            self._wrapped[key] = found
        return found

    def begin(self, claimed: Claimed) -> Call | Settlement:
        """The call to make; or, when no call is possible, already its end."""
        recorder = self.recorder
        if recorder is not None:
            # Before the lease is looked at, see `Recordings.loss_of`, and before the payload is
            # decoded, which may run code of an app.
            recorder.began(claimed)
        if self.keeper is not None and not self.keeper.holds(claimed.lease_id):
            # Another worker may hold it by now; the store decides whether this is recorded.
            if recorder is not None:
                recorder.ended(claimed)
            return self._settlement(claimed, Released(LEASE_GONE))
        try:
            begun = self._begin(claimed)
        except Exception as error:  # nothing that a payload brings along may end a slot
            begun = self._broken(claimed, error)
        if recorder is not None:
            if isinstance(begun, Settlement):
                recorder.ended(claimed)
            elif begun.timeout is not None and not begun.in_child:  # its time is that of the child
                recorder.limited(claimed, begun.timeout)
        return begun

    def ended(self, claimed: Claimed) -> None:
        """The handler is not running any more; to be called by its slot."""
        if self.recorder is not None:
            self.recorder.ended(claimed)

    def _broken(self, claimed: Claimed, error: Exception) -> Settlement:
        """Park a command whose payload or result raises an error when the worker handles it."""
        what = f"{claimed.command_type} {claimed.command_id}"
        logger.error("%s is parked: its payload or result raised an error", what, exc_info=error)
        failure = Failure(
            FailureKind.PERMANENT,
            "BROKEN_OUTCOME",
            f"What the handler brought along raised {type(error).__name__} when it was looked at.",
        )
        return self._settlement(claimed, Parked(failure, "BROKEN_OUTCOME"))

    def _begin(self, claimed: Claimed) -> Call | Settlement:
        handler = self._registry.get(claimed.domain, claimed.command_type)
        if handler is None:
            domain, name = claimed.domain, claimed.command_type
            outcome = decide_unknown_handler(domain, name, claimed.releases)
            parked = isinstance(outcome, Parked)
            level, fate = (logging.ERROR, "parked") if parked else (logging.WARNING, "given back")
            logger.log(level, "no handler for %s in domain %s: %s", name, domain, fate)
            return self._settlement(claimed, outcome)
        if claimed.cancel is not None or (self.requests and claimed.seq in self.requests):
            return self.canceled(claimed)
        timeout = handler.timeout
        if handler.total_timeout is not None:
            left = handler.total_timeout - claimed.age / SECOND
            if left <= 0:
                return self._settlement(claimed, self.judge(claimed, handler, _overdue(handler)))
            timeout = left if timeout is None else min(timeout, left)
        isolated = handler.isolated is not None and self._children is not None
        surrounded = handler.transactional or self._middleware or isolated
        if surrounded or (handler.registry and handler.registry.layers):
            handler = self._with_middleware(handler)
        traced = self._tracing is not None and claimed.headers is not None
        if traced or self._wraps:
            handler = self._around(handler, traced)
        try:
            command = command_of_claimed(claimed, handler.decode(claimed.data))
        except Exception as error:  # a payload type may raise anything in its validation
            refused = undecodable(handler.payload_name, error)
            return self._settlement(claimed, self.judge(claimed, handler, refused))
        # Last, because every call that the breaker allows must report its end.
        if handler.breaker is not None:
            wait = self._breakers.allow(handler.breaker)
            if wait > 0:
                target = handler.breaker.target
                return self._settlement(claimed, Released(denial(target), wait, breaker=target))
        running.set(command)  # in the context of the slot, of which the run gets a copy
        limit = self.limit(claimed, handler)
        context: HandlerContext | SyncHandlerContext
        if handler.is_async:
            context = HandlerContext(claimed, limit, self._async_services)
        else:
            context = SyncHandlerContext(claimed, limit, self._services)
        if isolated:
            context._timeout = timeout
        return Call(claimed, handler, command, context, timeout, isolated)

    def _with_middleware(self, handler: Handler) -> Handler:
        """The handler as it is called: middleware around its function, a transaction around both."""
        surrounded = self._surrounded.get(id(handler))
        if surrounded is None:
            function, layers = handler.function, (*handler.layers, *self._middleware)
            is_async = handler.is_async
            if handler.isolated is not None and self._children is not None:
                # For the slot it is a `def` handler, whatever it is in its child.
                function, is_async = in_child(self._children, handler, bool(layers)), False
            if layers:
                wrap = around_async if is_async else around
                function = wrap(function, layers)
            if handler.transactional:
                begin = in_async_transaction if is_async else in_transaction
                function = begin(function, self)
            surrounded = replace(handler, function=function, is_async=is_async)
            self._surrounded[id(handler)] = surrounded
        return surrounded

    def received(self, claimed: Claimed) -> Command[Any] | Settlement:
        """The command for manual processing, decoded for its handler if there is one and it can. A row
        that cannot be read at all is parked."""
        handler = self._registry.get(claimed.domain, claimed.command_type)
        if handler is not None:
            try:
                return command_of_claimed(claimed, handler.decode(claimed.data))
            except Exception as error:  # a payload type may raise anything; plain values must do then
                logger.warning(
                    "the payload of %s does not fit its handler: %s",
                    claimed.command_id,
                    describe_misfit(error),
                )
        try:
            return command_of_claimed(claimed, payload.decode(claimed.data))
        except Exception as error:  # one damaged row keeps no other from being received
            refused = undecodable("any payload", error)
            return self._settlement(claimed, self.judge(claimed, handler, refused))

    def succeeded(self, call: Call, result: Any, ran: int) -> Settlement:
        """The handler returned."""
        claimed, handler = call.claimed, call.handler
        if call.context.completion is not None:
            return call.context.completion.settlement
        plain = handler.contract is None and handler.breaker is None and claimed.reply_to is None
        if plain and result is None:
            # Without the calls below: most runs end like this.
            return completed(claimed, ran)
        if isinstance(result, HandlerResult):
            return result.settlement
        try:
            return self._succeeded(claimed, handler, result, ran)
        except Exception as error:  # nothing that a handler returns may end its slot
            return self._broken(claimed, error)

    def _succeeded(self, claimed: Claimed, handler: Handler, result: Any, ran: int) -> Settlement:
        if handler.breaker is not None:
            self._breakers.ended(handler.breaker.target, None)
        try:
            outcome: Outcome = result_of(handler, result)
        except PayloadError as error:
            refused = PermanentCommandError(
                "RESULT_NOT_JSON", f"The handler finished, but its result cannot be kept: {error}"
            )
            outcome = self.judge(claimed, handler, refused, ran)
        return self._settlement(claimed, outcome, ran)

    # For handlers in a transaction; see transactional.TransactionHost.

    def conclude(
        self, context: HandlerContext | SyncHandlerContext, result: Any, ran: int
    ) -> Settlement:
        claimed = context._claimed
        handler = self._registry.get_or_raise(claimed.domain, claimed.command_type)
        return self._succeeded(claimed, handler, result, ran)

    def bus_within(self, session: Any, is_async: bool) -> Any:
        return None if self._bus_over is None else self._bus_over(session, is_async, True)

    def connected(self) -> None:
        self._health.record_connection()

    def pauses(self, claimed: Claimed, *, goes_on: bool = False) -> None:
        if self.recorder is not None:
            self.recorder.pauses(claimed, goes_on=goes_on)

    def answered(self, call: Call) -> None:
        """The handler has done its work: what its breaker guards has answered."""
        if call.handler.breaker is not None:
            self._breakers.ended(call.handler.breaker.target, None)

    def settled(self, report: SettleReport) -> None:
        if self._settled is not None:
            self._settled(report)

    def failed(self, call: Call, error: BaseException, ran: int) -> Settlement:
        """The handler raised."""
        if isinstance(error, ChildEnded):
            return self._child_ended(call, error, ran)
        try:
            return self._failed(call, error, ran)
        except Exception as broken:  # nothing that a handler raises may end its slot
            return self._broken(call.claimed, broken)

    def _failed(self, call: Call, error: BaseException, ran: int) -> Settlement:
        if call.handler.breaker is not None:
            self._breakers.ended(call.handler.breaker.target, error)
        if isinstance(error, PoolExhausted):
            self._health.record_starvation(error)
        outcome = self.judge(call.claimed, call.handler, error, ran)
        return self._settlement(call.claimed, outcome, ran)

    def _child_ended(self, call: Call, ended: ChildEnded, ran: int) -> Settlement:
        """The worker ended the child process of the handler."""
        ran = ran if ended.ran is None else int(ended.ran * SECOND)
        match ended.end:
            case End.TIMEOUT:
                return self.timed_out(call, ran, ended.origin)
            case End.CANCELED:
                return self.canceled(call.claimed, ran)
            case End.STOPPED:
                return self.interrupted(call, ran)
            case End.LEASE_GONE:  # the store refuses it, unless it was a mistake
                return self._settlement(call.claimed, Released(LEASE_GONE), ran)

    def timed_out(self, call: Call, ran: int, origin: Origin | None = None) -> Settlement:
        """The handler was over its own timeout, or over what a thread may take without one."""
        total = call.handler.total_timeout
        if total is not None and (call.claimed.age + ran) / SECOND >= total:
            return self.failed(call, _overdue(call.handler), ran)
        if call.handler.timeout is not None:
            code, cure = "HANDLER_TIMEOUT", "its own timeout"
        else:
            code, cure = "THREAD_TIMEOUT", "declare timeout= on a handler that needs longer"
        error = TransientCommandError(code, f"Not finished after {ran / 1_000_000:.1f} s; {cure}.")
        set_origin(error, origin)
        return self.failed(call, error, ran)

    def interrupted(self, call: Call, ran: int) -> Settlement:
        """The worker stopped and canceled the handler or left it behind: no attempt is used."""
        claimed = call.claimed
        outcome = decide_stopped(claimed.releases)
        if isinstance(outcome, Parked):
            log_fate(claimed, outcome)
        return self._settlement(claimed, outcome, ran)

    def arrived(self, claimed: Iterable[Claimed]) -> None:
        """A cancellation of a command that an operator retried was requested before the operator let it
        be tried again."""
        if self.requests:
            for one in claimed:
                if one.attempt == 1 and not one.crashes and not one.releases:
                    self.requests.pop(one.seq, None)

    def canceled(self, claimed: Claimed, ran: int = 0) -> Settlement:
        """A cancel was requested, and the command was not begun or its handler has ended for it."""
        request = self._request(claimed) or CancelRequest("canceled")
        return self._settlement(claimed, Canceled(request.reason, request.actor), ran)

    def judge(
        self, claimed: Claimed, handler: Handler | None, error: BaseException, ran: int = 0
    ) -> Outcome:
        """What follows from an exception."""
        if not isinstance(error, TransactionEnded):  # no rule of the user makes it safe to run again
            registry = (handler and handler.registry) or self._registry
            error = registry.translate(error, handler)
        outcome = decide_failure(
            error,
            elapsed=(claimed.age + ran) / SECOND,
            total_timeout=handler.total_timeout if handler else None,
            attempt=claimed.attempt,
            crashes=claimed.crashes,
            max_attempts=self.limit(claimed, handler),
            policy=self._policy_of(claimed, handler),
        )
        if isinstance(outcome, Rejected | RetryLater | Parked):
            failure = outcome.failure
            self.last_exceptions.append(
                CaughtException(
                    str(claimed.command_id),
                    claimed.command_type,
                    claimed.attempt,
                    type(error).__name__,
                    failure.message,
                    error,
                )
            )
            log_fate(claimed, outcome)
        return outcome

    def _policy_of(self, claimed: Claimed, handler: Handler | None) -> RetryPolicy:
        """When to try again: as the command itself says, else its handler, else the worker."""
        if claimed.headers is not None and RETRY_HEADER in claimed.headers:
            try:
                return policy_of(payload.decode(claimed.headers)[RETRY_HEADER])
            except (ConfigurationError, KeyError) as error:
                logger.warning("the retry policy of %s is not used: %s", claimed.command_id, error)
        return (handler and handler.retry) or self._policy or RetryPolicy()

    def limit(self, claimed: Claimed, handler: Handler | None) -> int:
        """Attempts: the command's own number, else the handler's, the worker's, the bus's."""
        if claimed.max_attempts is not None:
            return claimed.max_attempts
        if handler is not None and handler.retry is not None:
            return handler.retry.max_attempts
        return self._policy.max_attempts if self._policy is not None else self._max_attempts

    def _settlement(self, claimed: Claimed, outcome: Outcome, ran: int = 0) -> Settlement:
        if not isinstance(outcome, Succeeded) and (request := self._request(claimed)) is not None:
            # It failed or was released. What a process has given up is not parked either: a retry
            # would do again what is being undone.
            again = RetryLater | Released | Parked if request.given_up else RetryLater | Released
            if isinstance(outcome, again):
                outcome = Canceled(request.reason, request.actor)
        return settlement_of(claimed, outcome, ran)

    def _request(self, claimed: Claimed) -> CancelRequest | None:
        return claimed.cancel or self.requests.get(claimed.seq)


def _overdue(handler: Handler) -> PermanentCommandError:
    return PermanentCommandError(
        "TOTAL_TIMEOUT", f"Not completed within total_timeout={handler.total_timeout:g} s."
    )
