"""Every error that users can meet. Each says what happened, with which value, and what to do next."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from commandbus.installation import check_package

check_package()


class CommandBusError(Exception):
    """Base of all errors raised by the bus; catching it catches them all."""


class ConfigurationError(CommandBusError, ValueError):
    """A setting, URL or registration is wrong. Raised at construction or at open, never later."""


class RoleMayNotError(ConfigurationError):
    """The role of the database login has no right to do this; nothing was changed."""


class LifespanError(CommandBusError):
    """A lifespan of a worker raised an exception, at its start or at its stop."""

    def __init__(self, lifespan: str, when: str, error: BaseException) -> None:
        effect = (
            "The worker did not start and has claimed nothing"
            if when == "start"
            else "The worker has stopped, and its other lifespans were stopped as well"
        )
        super().__init__(
            f"The lifespan {lifespan} failed at {when}: {type(error).__name__}: {error}. {effect}."
        )
        self.lifespan, self.when, self.error = lifespan, when, error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.lifespan, self.when, self.error)


class InvalidArgumentError(CommandBusError, ValueError):
    """An argument of a call cannot be accepted; nothing was changed."""


class PayloadError(CommandBusError, ValueError):
    """A payload, result or header cannot be kept exactly as given, so it is refused at the door."""


class StoreUnavailable(CommandBusError):  # noqa: N818 - a state, not a mistake; public name
    """The store cannot be reached or written right now. Repeating the call later is safe."""


class PoolExhausted(StoreUnavailable):
    """No connection became free in time: more is asked of the pool than it was made for."""


class StatementTimeout(StoreUnavailable):
    """The server canceled a statement, because it took longer than the statement timeout."""


class SchemaOutdated(CommandBusError):  # noqa: N818 - public name
    """The store's tables are missing, older or newer than this version; the message names the cure."""


class DuplicateCommandError(CommandBusError):
    """A command with this id exists in this domain already; the first one stands unchanged."""

    def __init__(self, domain: str, command_id: UUID) -> None:
        super().__init__(
            f"Command {command_id} exists already in domain {domain!r}; nothing was sent. "
            "If this repeats an uncertain send, the first send succeeded; "
            "otherwise use another command_id, or another idempotency_key where the id stands for one."
        )
        self.domain = domain
        self.command_id = command_id

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.domain, self.command_id)


class UniqueKeyHeld(DuplicateCommandError):  # noqa: N818 - a fact, not a mistake
    """A unique key is held, and its send was to be refused then. `holder` is its command."""

    def __init__(self, domain: str, unique_key: str, holder: UUID) -> None:
        CommandBusError.__init__(
            self,
            f"The unique key {unique_key!r} is held in domain {domain!r} by command {holder}; nothing "
            'was sent. With on_conflict="return" or "replace" a send is not refused.',
        )
        self.domain, self.unique_key, self.holder = domain, unique_key, holder
        self.command_id = holder

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.domain, self.unique_key, self.holder)


class CommandNotFoundError(CommandBusError, LookupError):
    """No command with this id exists (in this domain)."""

    def __init__(self, domain: str | None, command_id: UUID) -> None:
        where = f"in domain {domain!r}" if domain else "in any domain"
        super().__init__(
            f"There is no command {command_id} {where}; check the id, the domain and the store's URL."
        )
        self.domain = domain
        self.command_id = command_id

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.domain, self.command_id)


class BatchNotFoundError(CommandBusError, LookupError):
    """No batch with this id exists."""

    def __init__(self, batch_id: UUID) -> None:
        super().__init__(f"There is no batch {batch_id}; create it with create_batch first.")
        self.batch_id = batch_id

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.batch_id,)


class DuplicateProcessError(CommandBusError):
    """A process with this id exists already; it goes on unchanged."""

    def __init__(self, process_id: UUID) -> None:
        super().__init__(
            f"Process {process_id} exists already; nothing was started. If this repeats an uncertain "
            "start, the first one succeeded; otherwise use another process_id."
        )
        self.process_id = process_id

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.process_id,)


class ProcessNotFoundError(CommandBusError, LookupError):
    """No process with this id exists."""

    def __init__(self, process_id: UUID) -> None:
        super().__init__(f"There is no process {process_id}; check the id and the store's URL.")
        self.process_id = process_id

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.process_id,)


class InvalidOperationError(CommandBusError):
    """The operation does not fit the present state of its object; the message names the state."""


class NotFoundError(InvalidOperationError, LookupError):
    """There is no domain, schedule, breaker or limit of this name."""


class NotOpen(InvalidOperationError):  # noqa: N818 - a state, not a mistake
    """A session is asked for something before its bus was opened, or after it was closed."""

    def __init__(self) -> None:
        super().__init__("The bus is not open; use it inside `with bus:` or `async with bus:`.")


class LeaseLost(CommandBusError):  # noqa: N818 - public name
    """The lease on a command ran out or was taken over: whatever this worker wanted to record about
    it was refused, because another worker may be running it by now."""


class QueueFull(CommandBusError):  # noqa: N818 - public name
    """The queue is at its capacity; nothing was accepted.

    `retry_after` is a hint in seconds that a web API can turn into 429 and Retry-After."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimited(QueueFull):
    """A sender sends faster than it may; nothing was accepted. `retry_after` is when it may again."""

    def __init__(self, domain: str, sender: str, retry_after: float) -> None:
        super().__init__(
            f"Sender {sender!r} sends faster to domain {domain!r} than its limit allows; nothing was "
            f"sent. Try again in {retry_after:.3g} s.",
            retry_after=retry_after,
        )
        self.domain, self.sender = domain, sender

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.domain, self.sender, self.retry_after)


class HandlerNotFoundError(CommandBusError, LookupError):
    """No handler is registered for a (domain, command type)."""

    def __init__(self, domain: str, command_type: str) -> None:
        super().__init__(
            f"No handler is registered for {command_type!r} in domain {domain!r}; register one with "
            f"@registry.handler({domain!r}, {command_type!r})."
        )
        self.domain = domain
        self.command_type = command_type

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.domain, self.command_type)


class HandlerAlreadyRegisteredError(ConfigurationError):
    """Two handlers were given for one (domain, command type)."""

    def __init__(self, domain: str, command_type: str, places: tuple[str, str]) -> None:
        super().__init__(
            f"A handler for {command_type!r} in domain {domain!r} is registered already: {places[0]}, "
            f"and now {places[1]}; a command type has exactly one handler, so rename or remove one."
        )
        self.domain = domain
        self.command_type = command_type
        self.places = places

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.domain, self.command_type, self.places)


class HandlerError(CommandBusError):
    """Base of what a handler raises to say how its command failed."""

    def __init__(
        self,
        code: str,
        message: str = "",
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(f"[{code}] {message}" if message else f"[{code}]")
        self.code = code
        self.message = message
        self.error_message = message
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.message, self.details)


class TransientCommandError(HandlerError):
    """A retry may succeed: retried with backoff; parked when the attempts are used up."""


class HandlerTimeout(TransientCommandError):  # noqa: N818 - a state, not a mistake
    """Raised inside a `def` handler with `isolation="process"` when its `soft_timeout`, or else its
    `timeout`, is over: end soon, for the kill of its process follows."""

    def __init__(self, seconds: float) -> None:
        super().__init__("HANDLER_TIMEOUT", f"Not finished after {seconds:.1f} s; its own timeout.")
        self.seconds = seconds

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.seconds,)


class PermanentCommandError(HandlerError):
    """It will not work like this: no retry, straight to the troubleshooting queue."""


class BusinessRuleException(HandlerError):  # noqa: N818 - public name
    """The business says no: the command ends FAILED, its sender gets the reply, it is not parked."""


class Snooze(CommandBusError):  # noqa: N818 - a request, not a mistake
    """Raised by a handler to run again after `seconds` without using an attempt."""

    def __init__(self, seconds: float | timedelta, reason: str = "") -> None:
        seconds = _in_seconds(seconds)
        super().__init__(f"snoozed for {seconds:g} s{': ' + reason if reason else ''}")
        self.seconds = seconds
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.seconds, self.reason)


class CommandCanceled(CommandBusError):  # noqa: N818 - an end, not a mistake
    """Raised by a handler to end its command as CANCELED; by `context.raise_if_canceled()` when
    a cancellation was requested."""

    def __init__(self, reason: str = "canceled by its handler") -> None:
        super().__init__(reason)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason,)


class BreakerOpen(Snooze):
    """A target does not answer, so it is not called. Left uncaught in a handler, its command comes
    back when the breaker lets a probe through, without using an attempt."""

    def __init__(self, target: str, seconds: float) -> None:
        super().__init__(seconds, f"the breaker of {target!r} is open")
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.target, self.seconds)


class RetryAfter(TransientCommandError):  # noqa: N818 - a request, not a mistake
    """A transient failure whose other side said when to come back; overrides the backoff once."""

    def __init__(
        self,
        seconds: float | timedelta,
        code: str = "RETRY_AFTER",
        message: str = "",
        details: dict[str, Any] | None = None,
    ) -> None:
        seconds = _in_seconds(seconds)
        super().__init__(code, message or f"asked to come back in {seconds:g} s", details)
        self.seconds = seconds

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.seconds, self.code, self.message, self.details)


def _in_seconds(duration: float | timedelta) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration
