"""Limits: set, listed and taken away while the fleet works."""

from __future__ import annotations

from commandbus.domain.limits import Limit, make_limit
from commandbus.domain.moment import Duration, as_seconds
from commandbus.domain.names import as_name, as_reason
from commandbus.domain.page import Page
from commandbus.errors import NotFoundError
from commandbus.operations.actions import record_action
from commandbus.operations.scope import Scope
from commandbus.store.op import Op


def set_limit(
    scope: Scope,
    domain: str,
    command_type: str | None = None,
    *,
    per_key: bool = False,
    concurrency: int | None = None,
    rate: float | None = None,
    per: Duration = 1.0,
    burst: int | None = None,
    per_sender: bool = False,
    reason: str | None = None,
) -> Op[Limit]:
    """Limit, fleet-wide and across restarts, what of a domain runs at once (`concurrency`) and starts
    in `per` seconds (`rate`): all of it, one type, or with `per_key` each group key by itself.

    With `per_sender`, `rate` is about sends: a send with `sender=` that comes too early is refused
    with RateLimited. `burst` is how many may start at once after a pause, by default what the rate
    allows in 0.4 s. A limit replaces the one that was set for the same before. Raises
    InvalidArgumentError.
    """
    seconds = as_seconds(per, "per")
    limit = make_limit(domain, command_type, per_key, concurrency, rate, seconds, burst, per_sender)
    because = as_reason(reason)
    if limit not in (yield from scope.store.limits(limit.domain)):
        yield from scope.store.put_limit(limit)
        yield from record_action(scope, "set_limit", str(limit), because)
    return limit


def list_limits(scope: Scope, domain: str | None = None) -> Op[Page[Limit]]:
    """The limits of a domain, or of all, in one page."""
    name = None if domain is None else as_name(domain, "domain")
    return Page((yield from scope.store.limits(name)))


def clear_limit(
    scope: Scope,
    domain: str,
    command_type: str | None = None,
    *,
    per_key: bool = False,
    per_sender: bool = False,
    reason: str | None = None,
) -> Op[None]:
    """Take a limit away; what waited for it goes on. Raises NotFoundError if there is none."""
    concurrency, rate = (None, 1.0) if per_sender else (1, None)
    wanted = make_limit(domain, command_type, per_key, concurrency, rate, 1.0, None, per_sender)
    because = as_reason(reason)
    if not (yield from scope.store.drop_limit(wanted.domain, wanted.gate)):
        known = ", ".join(map(str, (yield from scope.store.limits(wanted.domain)))) or "none"
        raise NotFoundError(f"There is no such limit in domain {domain!r}; it has: {known}.")
    of = "sender" if per_sender else "key" if per_key else command_type or "the domain"
    yield from record_action(scope, "clear_limit", f"{wanted.domain}, {of}", because)
