"""Limits: how many commands run at once, and how many start per second.

A command that something holds back passes *gates*, one after another: the gate of its group key, then
that of its type, then that of its domain, as far as they exist. At each gate commands wait in order of
priority and sequence, and a gate lets as many pass as its limit allows. What passed all gates is
ordinary ready work. A command without a group key, in a domain without limits, knows no gates.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from commandbus.domain.moment import SECOND
from commandbus.domain.names import as_name
from commandbus.errors import InvalidArgumentError

PASS_MAX = 1_000
"""Commands that one gate lets pass at a time, so that no transaction takes long."""
COALESCE_SECONDS = 0.05
"""A rate gate opens for several commands at once rather than more often than this."""
CONCURRENCY_MAX = 1_000_000
RATE_MAX = 1_000_000.0

PER_KEY, PER_SENDER, DOMAIN, REQUIRES = "k", "s", "d", "r"
KEY_PREFIX, TYPE_PREFIX, SENDER_PREFIX = "k:", "t:", "s:"


class Limit(msgspec.Struct, frozen=True):
    """What may run at once (`concurrency`) and start per second (`rate`) in a domain, of one of its
    types, or of each group key by itself (`per_key`)."""

    domain: str
    command_type: str | None = None
    per_key: bool = False
    concurrency: int | None = None
    rate: float | None = None
    """Commands per second, by a token bucket."""
    burst: int = 1
    """How many tokens an unused bucket collects."""
    per_sender: bool = False
    """It is about sends, of each sender by itself: too many are refused, not held back."""

    @property
    def gate(self) -> str:
        """The name of its gate; of a limit per key, what all its gates have in common."""
        if self.per_key:
            return PER_KEY
        if self.per_sender:
            return PER_SENDER
        return DOMAIN if self.command_type is None else TYPE_PREFIX + self.command_type

    def __str__(self) -> str:
        parts: list[str] = []
        if self.concurrency is not None:
            parts.append(f"{self.concurrency} at once")
        if self.rate is not None:
            parts.append(rate_in_words(self.rate))
        if self.per_sender:
            return " and ".join(parts) + f" per sender to domain {self.domain!r}"
        whose = f"of type {self.command_type!r} in" if self.command_type else "of"
        return (
            " and ".join(parts)
            + f" {'per group key ' if self.per_key else ''}{whose} domain {self.domain!r}"
        )


_RATE = re.compile(r"(\d+(?:\.\d+)?)/(\d+)?([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def rate_in_words(rate: float) -> str:
    """As it was given: 100 per hour, and not 0.0277778 per second."""
    number, unit = rate_and_unit(rate)
    return f"{round(number, 3):g} per {unit}"


def rate_and_unit(rate: float) -> tuple[float, str]:
    """A rate by the shortest time in which a whole number starts."""
    units = [(1, "second"), (60, "minute"), (3_600, "hour"), (86_400, "day")]
    found = [(rate * seconds, unit) for seconds, unit in units]
    whole = [one for one in found if round(one[0]) and abs(one[0] - round(one[0])) < 1e-6 * one[0]]
    return (whole or [one for one in found if one[0] >= 1] or found[-1:])[0]


def parse_rate(text: object) -> tuple[float, float]:
    """So many per so many seconds, of a text such as 10/m, 5/s or 100/15m."""
    found = _RATE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidArgumentError(
            f'rate must be a text such as "10/m" or "100/15m" (units s, m, h, d), not {text!r}.'
        )
    count, times, unit = found.groups()
    return float(count), float(int(times or 1) * _UNITS[unit])


def limit_of_gate(
    domain: str, gate: str, concurrency: int | None, rate: float | None, burst: int
) -> Limit:
    """A stored limit, by the name of its gate."""
    command_type = gate.removeprefix(TYPE_PREFIX) if gate.startswith(TYPE_PREFIX) else None
    return Limit(domain, command_type, gate == PER_KEY, concurrency, rate, burst, gate == PER_SENDER)


def make_limit(
    domain: str,
    command_type: str | None,
    per_key: bool,
    concurrency: int | None,
    rate: float | None,
    per: float,
    burst: int | None,
    per_sender: bool = False,
) -> Limit:
    """A limit from what a caller says, checked."""
    name = as_name(domain, "domain")
    type_name = None if command_type is None else as_name(command_type, "command_type")
    if (type_name is not None) + per_key + per_sender > 1:
        raise InvalidArgumentError(
            "A limit is of a type, per key or per sender, only one of these; set several limits."
        )
    if per_sender and (rate is None or concurrency is not None):
        raise InvalidArgumentError("A limit per sender needs rate=, and has no concurrency.")
    if concurrency is None and rate is None:
        raise InvalidArgumentError(
            "A limit needs concurrency=, rate= or both; clear_limit() takes one away."
        )
    if concurrency is not None and (
        isinstance(concurrency, bool)
        or not isinstance(concurrency, int)
        or not 1 <= concurrency <= CONCURRENCY_MAX
    ):
        raise InvalidArgumentError(
            f"concurrency must be a whole number from 1 to {CONCURRENCY_MAX}, not {concurrency!r}; "
            "pause() stops a domain."
        )
    if rate is None:
        if burst is not None:
            raise InvalidArgumentError("burst belongs to a rate; give rate= too.")
        return Limit(name, type_name, per_key, concurrency)
    per_second, burst = make_rate(rate, per, burst)
    return Limit(name, type_name, per_key, concurrency, per_second, burst, per_sender)


def make_rate(rate: float, per: float, burst: int | None) -> tuple[float, int]:
    """Tokens per second, and how many an unused bucket collects; by default those of 0.4 s."""
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= RATE_MAX:
        raise InvalidArgumentError(f"rate must be a number above 0, up to {RATE_MAX:g}, not {rate!r}.")
    if per <= 0:
        raise InvalidArgumentError(f"per must be a time above 0, not {per!r}.")
    per_second = rate / per
    if burst is None:
        return per_second, max(1, round(0.4 * per_second))
    if isinstance(burst, bool) or not isinstance(burst, int) or not 1 <= burst <= CONCURRENCY_MAX:
        raise InvalidArgumentError(
            f"burst must be a whole number from 1 to {CONCURRENCY_MAX}, not {burst!r}."
        )
    return per_second, burst


def first_gate(
    gates: Collection[str], command_type: str, group_key: str | None, requires: str | None
) -> str | None:
    """Where a command waits first, or None when nothing holds it back. `gates` are the names of the
    limits of its domain."""
    if group_key is not None:
        return KEY_PREFIX + group_key
    return gate_after(gates, command_type, KEY_PREFIX) or (REQUIRES if requires is not None else None)


def gate_after(gates: Collection[str], command_type: str, passed: str) -> str | None:
    """The next gate of a command that passed one, or None when it has passed them all."""
    if passed.startswith(KEY_PREFIX) and TYPE_PREFIX + command_type in gates:
        return TYPE_PREFIX + command_type
    return DOMAIN if DOMAIN in gates and passed not in (DOMAIN, REQUIRES) else None


def in_passing_order(gates: Iterable[str]) -> list[str]:
    """Gates in the order in which a command passes them, so that one look at each is enough."""
    order = {KEY_PREFIX: 0, TYPE_PREFIX: 1}
    return sorted(gates, key=lambda gate: order.get(gate[:2], 2))


def limit_at(limits: Mapping[str, Limit], domain: str, gate: str) -> Limit:
    """What holds at a gate. Without a limit of its own a group runs one at a time, and another gate,
    whose limit was taken away, lets everything pass."""
    if not gate.startswith(KEY_PREFIX):
        return limits.get(gate) or Limit(domain)
    limit = limits.get(PER_KEY) or Limit(domain, per_key=True)
    return limit if limit.concurrency is not None else msgspec.structs.replace(limit, concurrency=1)


def take(limit: Limit, full_at: int, now: int, count: int) -> tuple[int, float]:
    """Take tokens out of a sender's bucket, all or none: when it is full again, and 0, or in how many
    seconds there will be enough. What is larger than the bucket takes a full one."""
    assert limit.rate is not None
    needed = min(count, limit.burst)
    if tokens(limit.rate, limit.burst, full_at, now) >= needed:
        return max(full_at, now) + round(needed * SECOND / limit.rate), 0.0
    enough_at = full_at - (limit.burst - needed) * SECOND / limit.rate
    return full_at, max(0.001, (enough_at - now) / SECOND)


class Grant(msgspec.Struct, frozen=True):
    """How many may pass a gate now; when its bucket will be full again; and when to ask again though
    nothing ends, or None. Times are microseconds."""

    count: int
    full_at: int
    again_at: int | None = None


def grant(limit: Limit, running: int, full_at: int, now: int, waiting: int) -> Grant:
    """What a gate lets pass. `waiting` is how many want to, counted no further than useful."""
    room = PASS_MAX if limit.concurrency is None else min(PASS_MAX, limit.concurrency - running)
    count = max(0, min(room, waiting))
    if limit.rate is None:
        return Grant(count, 0, now if count == PASS_MAX < waiting else None)
    interval = SECOND / limit.rate
    count = min(count, tokens(limit.rate, limit.burst, full_at, now))
    full_at = max(full_at, now) + round(count * interval)
    if count >= min(room, waiting):
        return Grant(count, full_at)
    useful = max(1, min(limit.burst, round(limit.rate * COALESCE_SECONDS)))
    return Grant(count, full_at, max(now, full_at - int((limit.burst - useful) * interval)))


def tokens(rate: float, burst: int, full_at: int, now: int) -> int:
    """How many tokens a bucket holds."""
    # A microsecond of rounding must not cost a token.
    missing = max(0, full_at - now - 1) * rate / SECOND
    return max(0, int(burst - missing))


def as_required_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags that a worker has or must have: names, in one order."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise InvalidArgumentError(f"required tags must be a list of names, not {tags!r}.")
    return tuple(sorted({as_name(tag, "required tag") for tag in tags}))


def partition_of(domain: str, requires: str | None) -> str:
    """Where ready work lies: with what a worker must have, commands are not interchangeable, and lie
    apart from those that any worker takes."""
    return domain if requires is None else f"{domain}#{requires}"


def may_take(requires: str, tags: Collection[str]) -> bool:
    """Whether a worker with these tags may take what requires those."""
    return set(requires.split(",")) <= set(tags)
