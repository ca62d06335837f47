"""Rows in the formats of COPY, written by hand: bulk sends spend most of their time here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import attrgetter, itemgetter
from struct import Struct
from typing import Any

from commandbus.domain.limits import KEY_PREFIX
from commandbus.engines.postgres.arrays import texts
from commandbus.store.inserting import Row
from commandbus.store.records import OPTIONAL, NewCommand

TOUCHED_MAX = 50
"""Groups that one touch is about."""

# Sizes and values of columns in the binary format; a row begins with the number of its columns.
_PLAIN_COLUMNS = 9
_FIRST_COLUMNS = Struct("!hiqi16s")
_LAST_COLUMNS = Struct("!iiiqiq")
_PLACE_MIDDLE, _PLACE_END = Struct("!iii"), Struct("!iqi?")
_ID_SIZE = (16).to_bytes(4, "big")

_NULL = "\\N"
_optional = attrgetter(*(column.name for column in OPTIONAL))
_NOTHING = (None,) * len(OPTIONAL)
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def is_plain(c: NewCommand) -> bool:
    """Whether a command is due at once and has nothing beyond its payload and priority, as most."""
    return (
        _optional(c) == _NOTHING
        and c.due_at is None
        and c.delay == 0
        and c.correlation_id is c.command_id
    )


def command_line(row: Row) -> str:
    """Names need no escapes; ids in hexadecimal are quicker to make than their usual form."""
    seq, c, now, due_at = row
    command_id = c.command_id.hex
    correlation_id = command_id if c.correlation_id is c.command_id else c.correlation_id.hex
    optional = [
        _NULL if value is None else render(value)
        for render, value in zip(_RENDERS, _optional(c), strict=True)
    ]
    return (
        f"{seq}\t{now}\t{due_at}\t{command_id}\t{c.domain}\t{c.command_type}\t{escaped(c.data)}"
        f"\t{correlation_id}\t{c.priority}\t" + "\t".join(optional)
    )


def plain_row(now: int) -> Callable[[Row], bytes]:
    """What makes rows of plain commands for `copy_plain`, in the binary format: the server spends a
    third less on them than on lines. Most columns are the same in all rows, and made once."""
    known: dict[tuple[str, str, int], tuple[bytes, bytes]] = {}

    def render(row: Row) -> bytes:
        seq, c, _, _ = row
        kind = c.domain, c.command_type, c.priority
        if kind not in known:
            names = b"".join(_field(name.encode()) for name in kind[:2])
            known[kind] = names, _LAST_COLUMNS.pack(4, c.priority, 8, now, 8, now)
        names, last = known[kind]
        command_id, data = c.command_id.bytes, c.data.encode()
        first = _FIRST_COLUMNS.pack(_PLAIN_COLUMNS, 8, seq, 16, command_id)
        size = len(data).to_bytes(4, "big")
        return b"".join((first, names, size, data, _ID_SIZE, command_id, last))

    return render


def plain_place(now: int) -> Callable[[Row], bytes]:
    """The same for their places in the queue, for `copy_plain_places`."""
    known: dict[tuple[str, int], bytes] = {}
    last = _PLACE_END.pack(8, now, 1, False)

    def render(row: Row) -> bytes:
        seq, c, _, _ = row
        kind = c.domain, c.priority
        if kind not in known:
            domain = _field(c.domain.encode())
            known[kind] = b"\0\x05" + domain + _PLACE_MIDDLE.pack(4, c.priority, 8)
        return known[kind] + seq.to_bytes(8, "big") + last

    return render


def _field(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


def queue_line(row: Row) -> str:
    seq, command, _, due_at = row
    keyed = command.unique_key is not None
    return f"{command.domain}\t{command.priority}\t{seq}\t{due_at}\t{keyed}"


def held_line(item: tuple[str, Row]) -> str:
    gate, (seq, command, _, due_at) = item
    return f"{command.domain}\t{escaped(gate)}\t{command.priority}\t{seq}\t{due_at}"


def touches(held: Iterable[tuple[str, Row]], now: int) -> list[tuple[str, str, int]]:
    """That gates are to be looked at; groups some at a time, for there may be as many as commands."""
    found = sorted({(command.domain, gate) for gate, (_, command, _, _) in held})
    return [
        (domain, gate, now)
        for domain, gates in groupby(found, key=itemgetter(0))
        for gate in _packed([gate for _, gate in gates])
    ]


def _packed(gates: list[str]) -> Iterator[str]:
    groups = [gate for gate in gates if gate.startswith(KEY_PREFIX)]
    yield from (gate for gate in gates if not gate.startswith(KEY_PREFIX))
    for first in range(0, len(groups), TOUCHED_MAX):
        yield "k*" + texts(groups[first : first + TOUCHED_MAX])


def touch_line(row: tuple[str, str, int]) -> str:
    domain, gate, at = row
    return f"{domain}\t{escaped(gate)}\t{at}"


def scheduled_line(row: Row) -> str:
    seq, command, _, due_at = row
    keyed = any(key is not None for key in (command.unique_key, command.group_key, command.requires))
    return f"{command.domain}\t{due_at}\t{seq}\t{command.priority}\t{keyed}"


def escaped(text: str) -> str:
    return text.translate(_ESCAPES) if not text.isprintable() or "\\" in text else text


_RENDER: dict[str, Callable[[Any], str]] = {"uuid": attrgetter("hex"), "text": escaped}
_RENDERS = [_RENDER.get(column.kind, str) for column in OPTIONAL]
