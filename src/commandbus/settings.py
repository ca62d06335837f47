"""Every setting of the bus and of the worker: defaults, bounds, and one error that names them all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from commandbus.domain.limits import as_required_tags
from commandbus.domain.moment import Duration, as_seconds
from commandbus.domain.names import as_name
from commandbus.domain.payload import PAYLOAD_BYTES_MAX
from commandbus.domain.priority import LABELS, as_priority
from commandbus.domain.retry import RetryPolicy, check_max_attempts
from commandbus.errors import CommandBusError, ConfigurationError

if TYPE_CHECKING:
    from commandbus.domain.command import SendRequest

S = TypeVar("S", "BusSettings", "WorkerSettings")
VERSION = "0.1.0"
DEFAULT_URL = "sqlite:///commandbus.db"
STATEMENT_SECONDS = 25.0
"""The statement timeout where leases leave room for it."""
LEDGER_KEY_LENGTH_MIN = 32
SHUTDOWN_SECONDS = 25.0
"""What a stop leaves running handlers: orchestrators kill after 30 s, and an end takes a moment."""


def resolve_url(url: str | None) -> str:
    """The argument, else COMMANDBUS_URL, else a file in the current folder."""
    return (os.environ.get("COMMANDBUS_URL") or DEFAULT_URL) if url is None else url


@dataclass(frozen=True, slots=True)
class BusSettings:
    """How a bus behaves, whatever it is stored in."""

    max_attempts: int = 3
    """Attempts of a command when neither it, its handler nor its worker says otherwise."""
    default_priority: str | int = "normal"
    """The priority of a send without one, where no hook chooses it: a label or a number."""
    priorities: Mapping[str, int] = field(default_factory=lambda: dict(LABELS))
    """Labels and their numbers, by default high 0, normal 5 and low 10; lower runs first."""
    priority_hook: Callable[[SendRequest], str | int | None] | None = None
    """Called at each send that names no priority; what it returns, unless None, is the priority."""
    affinity: Mapping[str, Mapping[str, Sequence[str]]] | None = None
    """By domain and type, the tags that a worker must have to take commands of that type, unless a
    send names others: {"video": {"render": ["gpu"]}}."""
    max_pending: int | None = None
    """How many commands of a domain may wait before sends are refused with QueueFull."""
    warn_depth: int | None = None
    """Log a warning when a domain's waiting commands rise above this; needs max_pending."""
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    """The size of a payload in bytes, above which a send is refused with PayloadError."""
    tracing: str | None = None
    """OpenTelemetry: "link" links the span of a handler to that of the send, "child" puts it below."""
    retention: Mapping[str, Duration] | None = None
    """How long workers keep commands that ended, by status, such as {"COMPLETED": 7 * 86_400}."""
    ledger_key: str | None = field(
        default_factory=lambda: os.environ.get("COMMANDBUS_LEDGER_KEY") or None, repr=False
    )
    """Seals the chain over what operators did (see `verify_audit`); at least 32 characters that are not
    in the store. Every program in which operators act needs the same one."""
    escalate_after: Duration | None = None
    """After so long a command that is still parked is recorded and logged, once."""
    escalate_to: str | None = None
    """The domain that is sent a command about each of them; None for none."""

    def __post_init__(self) -> None:
        problems: list[str] = []
        for name in ("max_pending", "warn_depth", "payload_bytes_max"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                problems.append(f"{name} must be a whole number of at least 1, not {value!r}")
        if self.ledger_key is not None and not (
            isinstance(self.ledger_key, str) and len(self.ledger_key) >= LEDGER_KEY_LENGTH_MIN
        ):
            problems.append(f"ledger_key must be a text of at least {LEDGER_KEY_LENGTH_MIN} characters")
        if self.tracing not in (None, "link", "child"):
            problems.append(f'tracing must be None, "link" or "child", not {self.tracing!r}')
        for status, seconds in (self.retention or {}).items():
            if str(status).upper() not in ("COMPLETED", "FAILED", "CANCELED"):
                problems.append(f"retention is for COMPLETED, FAILED and CANCELED, not {status!r}")
            _collect(problems, partial(as_seconds, seconds, f"retention of {status}", minimum=1.0))
        if self.escalate_after is not None:
            after = self.escalate_after
            _collect(problems, lambda: as_seconds(after, "escalate_after", minimum=1.0))
        if self.escalate_to is not None:
            _collect(problems, lambda: as_name(self.escalate_to, "escalate_to"))
            if self.escalate_after is None:
                problems.append("escalate_to needs escalate_after, because only then something is sent")
        for label, value in self.priorities.items():
            _collect(problems, partial(as_priority, value, {}), f"priorities[{label!r}]: ")
        default = partial(as_priority, self.default_priority, self.priorities)
        _collect(problems, default, "default_priority: ")
        for domain, types in (self.affinity or {}).items():
            if not isinstance(types, Mapping):
                problems.append(f"affinity[{domain!r}] must map types to tags, not {types!r}")
                continue
            for command_type, tags in types.items():
                where = f"affinity[{domain!r}][{command_type!r}]: "
                _collect(problems, partial(as_name, domain, "domain"), where)
                _collect(problems, partial(as_name, command_type, "command_type"), where)
                _collect(problems, partial(as_required_tags, tags), where)
        problems += self._depths()
        _collect(problems, lambda: check_max_attempts(self.max_attempts))
        _raise(problems)

    def _depths(self) -> list[str]:
        warn, most = self.warn_depth, self.max_pending
        if warn is not None and most is None:
            return ["warn_depth needs max_pending, because only then sends are counted"]
        if isinstance(warn, int) and isinstance(most, int) and warn > most:
            return [f"warn_depth ({warn}) must not be above max_pending ({most}): no more can wait"]
        return []


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker behaves, in either runtime. Durations are seconds."""

    concurrency: int = 4
    """How many handlers run at once."""
    prefetch: int | None = None
    """Commands claimed ahead of free slots; None sizes it by the measured handler time."""
    prefetch_budget: float = 0.05
    """With prefetch=None: how long a claimed command may wait for a slot."""
    prefetch_max: int = 1_000
    """With prefetch=None: how many commands are claimed ahead of free slots at most."""
    poll_interval: float = 60.0
    """The fallback interval: an idle worker claims after this time without a wake-up."""
    visibility_timeout: float = 30.0
    """Length of a lease. It is renewed at a third of it while the handler runs."""
    retry_policy: RetryPolicy | None = None
    """For handlers without a policy of their own; None means 3 attempts, after 10 s and 60 s."""
    thread_timeout: float | None = None
    """When a thread is given up that runs a `def` handler without a timeout of its own; None means five
    seconds after the length of a lease. A declared handler timeout counts instead, however long."""
    jitter: float = 0.0
    """Up to this many seconds are waited, at random, between a wake-up and the claim."""
    timer_grace: float = 0.0
    """An idle worker looks this long after a due time: what is due soon after is claimed with it."""
    recycle_after: int | None = None
    """Stop by itself after so many commands, for a supervisor to restart it; None means never."""
    shutdown_timeout: float = SHUTDOWN_SECONDS
    """How long stop() lets running handlers finish."""
    statement_timeout: float | None = None
    """After this long a server cancels a statement of the worker or of a transactional handler; None
    means 25 seconds, or less where leases are short. Shorter than a lease: what is canceled is still
    ours to record."""
    silence_timeout: float = 60.0
    """A claim or settle without an answer for this long makes the worker CRITICAL."""
    tags: tuple[str, ...] = ()
    """What this worker has; only such a worker takes commands that require it."""
    min_concurrency: int | None = None
    """With max_concurrency: the concurrency follows the load between the two."""
    max_concurrency: int | None = None
    """With both, `concurrency` is only the beginning: it follows the measured load between them."""
    recorder: str | None = field(default_factory=lambda: os.environ.get("COMMANDBUS_RECORDER") or None)
    """The folder of the flight recorder, which says after a crash what had begun; None means a private
    one in the machine's memory, "off" none."""
    ageing: float | None = None
    """A command that has waited this long counts as one step of priority more urgent, after twice as
    long as two, and so on, which prevents starvation; None keeps priorities strict."""

    def __post_init__(self) -> None:
        problems: list[str] = []
        _collect(problems, lambda: check_concurrency(self.concurrency))
        _collect(problems, lambda: check_poll_interval(self.poll_interval))
        if self.prefetch is not None and (not isinstance(self.prefetch, int) or self.prefetch < 0):
            problems.append(f"prefetch must be None or a whole number from 0, not {self.prefetch!r}")
        if not isinstance(self.prefetch_max, int) or self.prefetch_max < 0:
            problems.append(f"prefetch_max must be a whole number from 0, not {self.prefetch_max!r}")
        if self.retry_policy is not None and not isinstance(self.retry_policy, RetryPolicy):
            problems.append(f"retry_policy must be a RetryPolicy, not {self.retry_policy!r}")
        if self.recycle_after is not None and self.recycle_after < 1:
            problems.append(f"recycle_after must be None or at least 1, not {self.recycle_after!r}")
        if self.recorder is not None and not (isinstance(self.recorder, str) and self.recorder.strip()):
            problems.append(
                f'recorder must be None, "off" or the path of a folder, not {self.recorder!r}'
            )
        _collect(problems, lambda: as_required_tags(self.tags), "tags: ")
        _collect(problems, lambda: check_bounds(self.min_concurrency, self.max_concurrency))
        for name, minimum in (
            ("visibility_timeout", 0.1),
            ("prefetch_budget", 0.0),
            ("jitter", 0.0),
            ("timer_grace", 0.0),
            ("thread_timeout", 0.1),
            ("shutdown_timeout", 0.0),
            ("statement_timeout", 0.001),
            ("silence_timeout", 0.1),
            ("ageing", 0.001),
        ):
            if (
                name in ("thread_timeout", "statement_timeout", "ageing")
                and getattr(self, name) is None
            ):
                continue
            _collect(problems, partial(as_seconds, getattr(self, name), name, minimum=minimum))
        if not problems:
            problems += self._hierarchy()
        _raise(problems)

    def _hierarchy(self) -> list[str]:
        """Each layer must end before the next one takes over, or that one finds the former at work."""
        statement = self.statement_seconds
        layers = [
            ("visibility_timeout", self.visibility_timeout, "or its outcome comes too late"),
            ("silence_timeout", self.silence_timeout, "or a slow answer counts as none"),
        ]
        if self.thread_timeout is not None and self.statement_timeout is not None:
            why = "or a thread is given up while its statement runs"
            layers.append(("thread_timeout", self.thread_timeout, why))
        return [
            f"statement_timeout ({statement:g} s) must be less than {name} ({bound:g} s), {why}"
            for name, bound, why in layers
            if statement >= bound
        ]

    @property
    def statement_seconds(self) -> float:
        """Seconds after which a server cancels a statement."""
        if self.statement_timeout is not None:
            return self.statement_timeout
        return min(STATEMENT_SECONDS, self.visibility_timeout * 5 / 6, self.silence_timeout * 5 / 6)

    @property
    def stuck_after(self) -> float:
        """Seconds after which a thread counts as stuck."""
        return self.visibility_timeout + 5 if self.thread_timeout is None else self.thread_timeout


class BusOptions(TypedDict, total=False):
    """The fields of BusSettings as arguments of a bus."""

    max_attempts: int
    default_priority: str | int
    priorities: Mapping[str, int]
    priority_hook: Callable[[SendRequest], str | int | None] | None
    affinity: Mapping[str, Mapping[str, Sequence[str]]] | None
    max_pending: int | None
    warn_depth: int | None
    payload_bytes_max: int
    tracing: str | None
    retention: Mapping[str, Duration] | None
    ledger_key: str | None
    escalate_after: Duration | None
    escalate_to: str | None


class WorkerOptions(TypedDict, total=False):
    """The fields of WorkerSettings as arguments of a worker; durations may be timedeltas."""

    concurrency: int
    prefetch: int | None
    prefetch_budget: Duration
    prefetch_max: int
    poll_interval: Duration
    visibility_timeout: Duration
    retry_policy: RetryPolicy | None
    thread_timeout: Duration | None
    jitter: Duration
    timer_grace: Duration
    recycle_after: int | None
    shutdown_timeout: Duration
    statement_timeout: Duration | None
    silence_timeout: Duration
    tags: Iterable[str]
    min_concurrency: int | None
    max_concurrency: int | None
    recorder: str | None
    ageing: Duration | None


def defaults_of(kind: type[S]) -> dict[str, Any]:
    """The default of each setting."""
    made = kind()
    return {setting.name: getattr(made, setting.name) for setting in fields(kind)}


def settings_of(kind: type[S], given: S | None, options: Mapping[str, Any]) -> S:
    """The settings that a bus or a worker was given, with its further arguments in their place.
    A name that is no setting is refused, with the nearest one."""
    if given is not None and not isinstance(given, kind):
        raise ConfigurationError(f"settings must be {kind.__name__}, not {given!r}.")
    known = [setting.name for setting in fields(kind)]
    _raise([_unknown(name, known) for name in options if name not in known])
    plain: dict[str, Any] = {
        name: value.total_seconds() if isinstance(value, timedelta) else value
        for name, value in options.items()
    }
    if "tags" in plain:
        plain["tags"] = as_required_tags(plain["tags"])
    return kind(**plain) if given is None else replace(given, **plain)


def _unknown(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, 1) or known
    return f"there is no setting {name!r}, but {', '.join(near)}"


def check_concurrency(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"concurrency must be a whole number of at least 1, not {value!r}.")
    return value


def check_bounds(low: int | None, high: int | None) -> None:
    if low is None and high is None:
        return
    if low is None or high is None:
        raise ConfigurationError("Give both min_concurrency and max_concurrency, or none of them.")
    if check_concurrency(low) > check_concurrency(high):
        raise ConfigurationError(
            f"min_concurrency must not be above max_concurrency, but {low} is above {high}."
        )


def check_poll_interval(value: float) -> float:
    seconds = as_seconds(value, "poll_interval")
    if seconds < 0.1:
        raise ConfigurationError(
            f"poll_interval must be at least 0.1 s (100 ms), not {value!r}: it is the fallback, and "
            "wake-ups do not wait for it."
        )
    return seconds


def _collect(problems: list[str], check: Callable[[], object], which: str = "") -> None:
    try:
        check()
    except CommandBusError as error:
        problems.append(which + str(error).rstrip("."))


def _raise(problems: list[str]) -> None:
    if problems:
        raise ConfigurationError("; ".join(problems) + ".")
