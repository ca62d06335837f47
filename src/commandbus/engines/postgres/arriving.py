"""Moving to a PostgreSQL server: commands arrive with their attempts and their past."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from commandbus.engines.postgres.arrays import integers, numbers, texts
from commandbus.engines.postgres.context import Context, Part
from commandbus.engines.postgres.sending import Sender
from commandbus.errors import InvalidOperationError
from commandbus.store.moving import Moving
from commandbus.store.op import Op, Statement
from commandbus.store.records import Capacity, NewCommand

_NEVER = 2**62
"""When a parked command would be due, until it is put where it belongs."""


class Arrivals(Part):
    """Takes in commands that move from another store."""

    def __init__(self, context: Context, sender: Sender) -> None:
        super().__init__(context)
        self._sender = sender

    def arrive(self, commands: Sequence[Moving]) -> Op[list[Moving]]:
        rows = yield Statement(self._sql.known_ids, _ids([one.command for one in commands]))
        known = {(command_id, domain) for command_id, domain in rows}
        new = [o for o in commands if (o.command.command_id, o.command.domain) not in known]
        if not new:
            return []
        sent = [_as_sent(one) for one in new]
        for command, inserted in zip(
            sent, (yield from self._sender.insert(sent, Capacity())), strict=True
        ):
            if inserted.duplicate:
                raise InvalidOperationError(
                    f"The unique key {command.unique_key!r} of command {command.command_id} is held by "
                    f"{inserted.command_id} in the target; end that one, and promote again."
                )
        yield Statement(
            self._sql.arrive_counts,
            (
                *_ids(sent),
                integers(one.created_at for one in new),
                integers(one.due_at for one in new),
                integers(one.attempts for one in new),
                integers(one.crashes for one in new),
                integers(one.releases for one in new),
            ),
        )
        yield from self._arrive_parked([one for one in new if one.parking is not None])
        past = [(one.command, *entry) for one in new for entry in one.audit]
        yield Statement(
            self._sql.arrive_audit,
            (
                *_ids([command for command, _, _, _ in past]),
                texts(kind for _, kind, _, _ in past),
                integers(at for _, _, at, _ in past),
                texts(details for _, _, _, details in past),
            ),
        )
        steps = [(one.command, *step) for one in new for step in one.steps]
        yield Statement(
            self._sql.arrive_steps,
            (
                *_ids([command for command, _, _, _ in steps]),
                texts(name for _, name, _, _ in steps),
                texts(result for _, _, result, _ in steps),
                integers(at for _, _, _, at in steps),
            ),
        )
        return new

    def _arrive_parked(self, parked: Sequence[Moving]) -> Op[None]:
        places = [one.parking for one in parked if one.parking is not None]
        yield Statement(
            self._sql.arrive_parked,
            (
                *_ids([one.command for one in parked]),
                integers(one.attempts for one in parked),
                integers(one.crashes for one in parked),
                texts(place.worker for place in places),
                numbers(place.started_at for place in places),
                integers(place.finished_at for place in places),
                texts(place.error for place in places),
                texts(place.reason for place in places),
            ),
        )


def _as_sent(moving: Moving) -> NewCommand:
    if moving.parking is None:
        return moving.command
    return msgspec.structs.replace(moving.command, due_at=_NEVER)


def _ids(commands: Sequence[NewCommand]) -> tuple[str, str]:
    return numbers(c.command_id for c in commands), texts(c.domain for c in commands)
