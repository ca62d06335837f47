"""Links what operators did in callers' transactions, after the commit."""

from __future__ import annotations

from commandbus.operations.ledger import TOPIC, link_open
from commandbus.operations.scope import Scope
from commandbus.store.op import Op
from commandbus.store.sessions import quiet

SWEEP = 300.0
"""How often to look for entries that were left while no process listened."""


class Linker:
    """Runs when an entry was left."""

    name = "linker"
    topic = TOPIC

    def work(self, scope: Scope) -> Op[float]:
        linked = yield from link_open(scope)
        return 0.0 if linked else quiet(scope.store, SWEEP)
