"""Rows in the formats of COPY, written by hand: bulk sends spend most of their time here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from struct import Struct

from commandbus.domain.limits import KEY_PREFIX
from commandbus.engines.postgres.arrays import texts
from commandbus.store.records import NewCommand

TOUCHED_MAX = 50
"""Groups that one touch is about."""

Row = tuple[int, NewCommand, int, int]
"""A sequence, its command, and in microseconds when it was sent and is due."""

# Sizes and values of columns in the binary format; a row begins with the number of its columns.
_PLAIN_COLUMNS = 9
_FIRST_COLUMNS = Struct("!hiqi16s")
_LAST_COLUMNS = Struct("!iiiqiq")
_PLACE_MIDDLE, _PLACE_END = Struct("!iii"), Struct("!iqi?")
_ID_SIZE = (16).to_bytes(4, "big")

_NULL = "\\N"
_NOTHING = (None,) * 11
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def is_plain(c: NewCommand) -> bool:
    """Whether a command is due at once and has nothing beyond its payload and priority, as most."""
    more = (
        c.due_at, c.causation_id, c.reply_to, c.expires_at, c.max_attempts, c.unique_key, c.tags,
        c.headers, c.batch_id, c.group_key, c.requires,
    )  # fmt: skip
    return more == _NOTHING and c.delay == 0 and c.correlation_id is c.command_id


def command_line(row: Row) -> str:
    """Names need no escapes; ids in hexadecimal are quicker to make than their usual form."""
    seq, c, now, due_at = row
    command_id = c.command_id.hex
    same = c.correlation_id is c.command_id
    return (
        f"{seq}\t{command_id}\t{c.domain}\t{c.command_type}\t{escaped(c.data)}"
        f"\t{command_id if same else c.correlation_id.hex}"
        f"\t{_NULL if c.causation_id is None else c.causation_id.hex}"
        f"\t{_NULL if c.reply_to is None else c.reply_to}"
        f"\t{c.priority}\t{_NULL if c.max_attempts is None else c.max_attempts}\t{now}\t{due_at}"
        f"\t{_NULL if c.expires_at is None else c.expires_at}"
        f"\t{_NULL if c.unique_key is None else escaped(c.unique_key)}"
        f"\t{_NULL if c.tags is None else escaped(c.tags)}"
        f"\t{_NULL if c.headers is None else escaped(c.headers)}"
        f"\t{_NULL if c.batch_id is None else c.batch_id.hex}"
        f"\t{_NULL if c.group_key is None else escaped(c.group_key)}"
        f"\t{_NULL if c.requires is None else c.requires}"
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
