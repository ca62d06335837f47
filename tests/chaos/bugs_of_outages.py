"""Seeded bugs of what follows when the server was away, stops, or has too few connections."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from commandbus.engines.postgres.pools import Following, UnboundedPool
from commandbus.engines.postgres.shortage import Shortage
from commandbus.errors import NotOpen, StoreUnavailable
from commandbus.operations.presence import forget_worker
from commandbus.runtimes.processes import RouterBase
from commandbus.services.process_router import RouterLoop
from commandbus.worker.events import ClaimFailed
from tests.chaos.seeded import around, bug


@bug("P15", experiment="outage")
def a_broken_connection_is_used_again() -> None:
    def putconn(original: Any, pool: Any, connection: Any) -> None:
        if connection.closed and not pool.closed:
            pool._idle.append((connection, time.monotonic()))
        else:
            original(pool, connection)

    around(UnboundedPool, "putconn", putconn)


@bug("P15", experiment="outage", reader=True)
def a_call_does_not_wait_for_a_server_that_is_away() -> None:
    around(UnboundedPool, "pauses", lambda original, pool, until: iter(()))


@bug("P15", experiment="routers")
def a_router_takes_an_outage_for_a_closed_bus() -> None:
    def claim(original: Any, loop: Any, effect: Any) -> Any:
        answer = yield from original(loop, effect)
        away = isinstance(answer, ClaimFailed) and isinstance(answer.error, StoreUnavailable)
        return ClaimFailed(NotOpen()) if away else answer

    around(RouterLoop, "_claim", claim)


@bug("P18", experiment="routers")
def a_router_says_farewell_before_it_stops() -> None:
    def ask_to_stop(original: Any, router: Any) -> None:
        session, scope = router._bus.engine.service_session, router._bus.scope
        while True:
            try:
                session.run(forget_worker(scope, router.name))
            except StoreUnavailable:
                time.sleep(0.1)
            else:
                return original(router)

    around(RouterBase, "_ask_to_stop", ask_to_stop)


# One of these alone is made good by the others.
@bug("P15", experiment="together")
def services_and_listeners_do_not_wait_for_claims() -> None:
    kept: dict[Any, list[Any]] = defaultdict(list)

    async def getconn(original: Any, following: Any) -> Any:
        if kept[following._reserve]:
            return kept[following._reserve].pop()
        return await following._reserve.connect(following._reserve.settings)

    def putconn(original: Any, following: Any, connection: Any) -> None:
        if not connection.closed:
            kept[following._reserve].append(connection)

    around(Following, "getconn", getconn)
    around(Following, "putconn", putconn)
    around(Shortage, "refused", lambda original, shortage: False)
    around(Shortage, "may_follow", lambda original, shortage, seconds: True)
