"""`assert_sent`: was a command sent, and if not, what was?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from commandbus.domain import payload
from commandbus.domain.command import CommandRecord, SendRequest, TypedRequest
from commandbus.domain.names import as_name
from commandbus.operations.commands import query_commands
from commandbus.runtimes.asyncio.bus import CommandBus
from commandbus.runtimes.threads.bus import SyncCommandBus

ANYTHING: Any = object()
LISTED_MAX = 20


def sent_commands(
    bus: CommandBus | SyncCommandBus, domain: str | None = None, command_type: str | None = None
) -> list[CommandRecord]:
    """The records of all commands on a bus, in order of sending, whatever became of them. Blocks for
    a moment, with a bus of either runtime."""
    return list(_pages(bus, domain, command_type))[::-1]


def assert_sent(
    bus: CommandBus | SyncCommandBus,
    domain: str | SendRequest[Any],
    command_type: str | None = None,
    data: Mapping[str, Any] | Callable[[Any], bool] | Any = ANYTHING,
    *,
    count: int | None = None,
) -> list[CommandRecord]:
    """Assert that such a command was sent, `count` times if given (0 means never); returns them in
    order of sending. Call it without `await`, with a bus of either runtime.

    In place of `domain`, `command_type` and `data`, a request such as `receipt(order=7)` names all
    three; the whole payload has to be equal then. `data` is compared as it was sent: of a mapping, the
    keys that are named have to be equal, mappings inside likewise; a function gets the payload and says
    whether it fits; anything else is equal.
    """
    whole = isinstance(domain, SendRequest)
    if isinstance(domain, SendRequest):
        if command_type is not None or data is not ANYTHING:
            raise TypeError("A request has its command type and its payload; give neither beside it.")
        command_type, data = domain.command_type, _payload(domain)
        domain = domain.domain
    as_name(domain, "domain")
    sent = sent_commands(bus)
    found = [
        one
        for one in sent
        if one.domain == domain
        and command_type in (None, one.command_type)
        and (data is ANYTHING or (one.data == data if whole else _fits(data, one.data)))
    ]
    enough = bool(found) if count is None else len(found) == count
    assert enough, _complaint(domain, command_type, data, count, found, sent)
    return found


def _payload(request: SendRequest[Any]) -> Any:
    """The payload of a request as a record has it."""
    text = request.text if isinstance(request, TypedRequest) else payload.encode(request.data)
    return payload.decode(text)


def _pages(
    bus: CommandBus | SyncCommandBus, domain: str | None, command_type: str | None
) -> Iterator[CommandRecord]:
    after: str | None = None
    while True:
        op = query_commands(
            bus.scope, domain=domain, command_type=command_type, after=after, limit=1_000
        )
        page = bus.engine.session.run(op, read=True)
        yield from page
        after = page.next
        if after is None:
            return


def _fits(wanted: Any, actual: Any) -> bool:
    if isinstance(wanted, Mapping):
        return isinstance(actual, Mapping) and all(
            key in actual and _fits(value, actual[key]) for key, value in wanted.items()
        )
    return bool(wanted(actual)) if callable(wanted) else bool(wanted == actual)


def _complaint(
    domain: str,
    command_type: str | None,
    data: Any,
    count: int | None,
    found: list[CommandRecord],
    sent: list[CommandRecord],
) -> str:
    what = domain if command_type is None else f"{domain} {command_type}"
    with_data = "" if data is ANYTHING else f" with {data!r}"
    times = "was not sent" if count is None else f"was sent {len(found)} times, not {count}"
    if not sent:
        return f"{what}{with_data} {times}; nothing was sent at all."
    lines = [f"  {one.domain} {one.command_type} {one.data!r} ({one.status})" for one in sent]
    if len(lines) > LISTED_MAX:
        lines = [f"  … {len(lines) - LISTED_MAX} more before these", *lines[-LISTED_MAX:]]
    return "\n".join([f"{what}{with_data} {times}; sent were:", *lines])
