"""Seeded bugs of claim bounds, receipts, connection pools and stops."""

from __future__ import annotations

from typing import Any

from commandbus.engines.postgres import bounds, receipts, settle_query
from commandbus.engines.postgres.pools import AsyncPool, Pool
from commandbus.worker.core import WorkerCore
from commandbus.worker.releases import STOPPING
from tests.chaos.seeded import around, bug

BACKLOG = 10_000
"""Outlasts a short stay, so that claims go on along the queue and never find it empty."""
BEHIND: dict[str, Any] = {"backlog": BACKLOG, "ahead": 2 * BACKLOG, "types": {"note": 1.0}, "calm": 0.7}
DEEPER: dict[str, Any] = {"backlog": 3 * BACKLOG, "ahead": 4 * BACKLOG, "redelivery": 1.0}
"""Never drained while workers die, and judged by the promise's own second."""


@bug("P15", postgres=True, plan=BEHIND | DEEPER | {"only": {"kill worker": 1.0}})
def claims_never_look_below_their_bounds() -> None:
    bounds.FORGET_SECONDS = 60.0
    for name in ("forget", "returned", "lower"):
        setattr(bounds.Bounds, name, lambda *_: None)


@bug("P1", postgres=True, plan=BEHIND)
def a_receipt_forgets_its_last_command() -> None:
    receipts.MEMBERS_MIN = 2

    def write(original: Any, proof: int, members: Any) -> Any:
        return original(proof, members[:-1] if len(members) > 1 else members)

    around(receipts, "_receipt", write)


@bug("P1", postgres=True, plan=BEHIND)
def a_receipt_is_written_beside_the_rows() -> None:
    receipts.MEMBERS_MIN = 2

    def fold(original: Any, outcomes: Any, proofs: Any) -> Any:
        folded = original(outcomes, proofs)
        return folded._replace(rows=outcomes)

    around(settle_query, "fold", fold)


@bug("P1", postgres=True, kinds={"note": 300.0, "transfer": 600.0})
def a_pool_does_not_get_its_connections_back() -> None:
    for pool in (Pool, AsyncPool):
        pool._release = lambda self: None


@bug("P18", plan=BEHIND | {"only": {"stop worker": 1.0}})
def a_stop_forgets_what_had_not_begun() -> None:
    def give_back(original: Any, core: Any, unbegun: Any, reason: str) -> None:
        if reason == STOPPING:
            core.held -= len(unbegun)
        else:
            original(core, unbegun, reason)

    around(WorkerCore, "_give_back", give_back)
