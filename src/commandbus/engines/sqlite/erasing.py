"""Erasing on SQLite."""

from __future__ import annotations

from collections.abc import Sequence

from commandbus.engines.sqlite.queries import load_queries
from commandbus.engines.sqlite.rows import as_json
from commandbus.store.erasing import MARKER, erased_details, erased_failure, erased_reason
from commandbus.store.op import Op, Statement
from commandbus.store.reading import read_failure
from commandbus.store.trail import read_details

SQL = load_queries("erasing.sql")


class SqliteErasing:
    def erase(self, seqs: Sequence[int]) -> Op[list[int]]:
        rows = yield Statement(SQL.ended, (as_json(seqs),))
        if not rows:
            return []
        chosen = [seq for seq, _, _ in rows]
        outcomes = [(MARKER, _erased(error), erased_reason(reason), seq) for seq, error, reason in rows]
        yield Statement(SQL.erase_outcome, outcomes, many=True)
        yield Statement(SQL.erase_commands, (MARKER, as_json(chosen)))
        kept = yield Statement(SQL.audit_of, (as_json(chosen),))
        if kept:
            erased = [(as_json(erased_details(read_details(text))), number) for number, text in kept]
            yield Statement(SQL.erase_audit, erased, many=True)
        yield Statement(SQL.erase_steps, (as_json(chosen),))
        yield Statement(SQL.erase_progress, (as_json(chosen),))
        return chosen


def _erased(error: str | None) -> str | None:
    failure = read_failure(error)
    return None if failure is None else as_json(erased_failure(failure))
