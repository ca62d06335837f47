"""Erasing on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from commandbus.engines.postgres.arrays import integers, texts
from commandbus.engines.postgres.context import Part
from commandbus.engines.postgres.settle_query import as_json
from commandbus.store.erasing import MARKER, erased_details, erased_failure, erased_reason
from commandbus.store.op import Op, Statement
from commandbus.store.reading import read_failure
from commandbus.store.trail import read_details


class Eraser(Part):
    def erase(self, seqs: Sequence[int]) -> Op[list[int]]:
        yield Statement(self._sql.unfold, (integers(seqs),))
        rows = yield Statement(self._sql.lock_ended, (integers(seqs),))
        if not rows:
            return []
        chosen = [seq for seq, _, _ in rows]
        failures = [read_failure(error) for _, error, _ in rows]
        errors = texts(None if f is None else as_json(erased_failure(f)) for f in failures)
        reasons = texts(erased_reason(reason) for _, _, reason in rows)
        yield Statement(self._sql.erase_outcomes, (integers(chosen), errors, reasons, MARKER))
        yield Statement(self._sql.erase_commands, (integers(chosen), MARKER))
        kept = yield Statement(self._sql.audit_of, (integers(chosen),))
        details = texts(as_json(erased_details(read_details(text))) for _, text in kept)
        yield Statement(self._sql.erase_audit, (integers(number for number, _ in kept), details))
        yield Statement(self._sql.erase_rest, (integers(chosen),))
        return chosen
