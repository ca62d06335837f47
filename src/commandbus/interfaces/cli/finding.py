"""Commands, batches and processes by what was typed: a whole id, or the digits that a list shows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from commandbus.interfaces.cli import output, text
from commandbus.interfaces.cli.exits import CliError, Exit

if TYPE_CHECKING:
    from uuid import UUID

    from commandbus.interfaces.search import BoundedSearch
    from commandbus.sync import SyncCommandBus

SECONDS = 60.0
"""How long a search goes on, where no other limit is given."""
SHOWN = 3

Kind = Literal["command", "batch", "process"]


def whole_id(bus: SyncCommandBus, given: str, *kinds: Kind) -> UUID:
    """The id that was given, or the only one of these kinds with its digits. Raises CliError with exit
    code 7 when there is none, 8 when the search took too long, and 2 when there are several."""
    from commandbus.domain.ids import as_id, as_id_parts
    from commandbus.errors import InvalidArgumentError

    what = " or ".join(kinds)
    try:
        return as_id(given, "ID")
    except InvalidArgumentError:
        if not as_id_parts(given):
            raise CliError(
                f"{given!r} is not the id of a {what}; a list shows ids, and four digits or more from "
                "the beginning or the end of one will do.",
                Exit.USAGE,
            ) from None
    found = [one for kind in kinds for one in _looked_up(bus, given, kind)]
    if not found:
        raise CliError(
            f"There is no {what} whose id begins or ends with {given!r}. To search payloads, name the "
            f"field: commandbus list data.order:{given}",
            Exit.NOT_FOUND,
        )
    if len(found) > 1:
        some = ", ".join(map(str, found[:SHOWN])) + (", …" if len(found) > SHOWN else "")
        many = "100 or more" if len(found) >= 100 else len(found)
        raise CliError(
            f"{given!r} may be any of {many} {' or '.join(map(text.plurals, kinds))}: {some}. "
            "Give more digits.",
            Exit.USAGE,
        )
    return found[0]


def _looked_up(bus: SyncCommandBus, digits: str, kind: Kind) -> list[UUID]:
    """All ids with these digits, or more than one. The newest come first, the search ends with all."""
    found: list[UUID] = []
    after, began, looks = None, time.monotonic(), 0
    with output.working(f"looking for {digits}") as tell:
        while True:
            page = bus.look_up(digits, kind, after=after)
            found += page
            after, looks = page.next, looks + 1
            if after is None or len(found) > 1:
                return found
            tell(f"{looks * 50_000:,} ids looked at")
            if time.monotonic() - began > SECONDS:
                raise CliError(
                    f"Of the newest {looks * 50_000:,} ids, {len(found)} fit {digits!r}, and the "
                    f"search stopped after {text.duration(SECONDS)}; give the beginning of the id, "
                    "or all of it.",
                    Exit.TIMED_OUT,
                )


def fill(bus: SyncCommandBus, look: BoundedSearch) -> None:
    """Search until the page is full, everything was looked at, or the time is up."""
    with output.working("searching") as tell:
        while (asked := look.asked()) is not None:
            look.add(bus.query_commands(**asked))
            if look.next is not None:
                tell(f"{len(look.found):,} found, {int(look.next):,} commands to look at")
