"""Sign-ins that the processes of a dashboard share through the store.

Without it a guesser would have as many tries as there are processes, and a session that was ended in
one would go on in the others. A store that is down, or a database role that may not write, must not
keep operators out: then each process counts for itself.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from commandbus.errors import CommandBusError
from commandbus.interfaces.web.refusals import Refused
from commandbus.interfaces.web.sessions import Keys
from commandbus.interfaces.web.stores import Stores
from commandbus.interfaces.web.throttle import FORGET_SECONDS, delay_after, network_of, too_many
from commandbus.operations import sign_ins
from commandbus.operations.scope import Scope
from commandbus.store.op import Op

logger = logging.getLogger("commandbus.dashboard")
T = TypeVar("T")

TRUST_SECONDS = 30 * 86_400.0
LOOK_SECONDS = 1.0
"""How long a session counts as not ended elsewhere before the store is asked again."""
SESSIONS_MAX = 1_000
COUNTERS_MAX = 4_096
"""Counters of addresses in the store, and of accounts. Names are free to invent, so that one counter
for each would let strangers fill the store. Some share one; which ones do depends on a key, so that no
client can choose a name or an address to hold up another one."""


class Fleet:
    def __init__(self, stores: Stores, keys: Keys, clock: Callable[[], float] = time.monotonic) -> None:
        self._stores = stores
        self._keys = keys
        self._clock = clock
        self._looked: OrderedDict[str, float] = OrderedDict()

    async def check(self, address: str, name: str) -> None:
        """Raises Refused while the address or the account has to wait. A name that is no account is
        counted like one: otherwise the answers would tell accounts from other names."""
        source, account = self._address(address), self._account(name)
        none: dict[str, tuple[int, float]] = {}
        failed = await self._run(lambda scope: sign_ins.failures_of(scope, [source, account]), none)
        waits = {key: delay_after(count) - age for key, (count, age) in failed.items()}
        wait = waits.get(source, 0.0)
        if waits.get(account, 0.0) > max(wait, 0.0):
            place = _place(address, name)
            if not await self._run(lambda scope: sign_ins.is_trusted(scope, place), False):
                wait = waits[account]
        if wait > 0:
            raise too_many(wait)

    async def failed(self, address: str, name: str) -> None:
        keys = [self._address(address), self._account(name)]
        await self._run(lambda scope: sign_ins.add_failure(scope, keys, FORGET_SECONDS), None)

    async def succeeded(self, address: str, name: str) -> None:
        account, place = self._account(name), _place(address, name)
        await self._run(lambda scope: sign_ins.trust(scope, account, place, TRUST_SECONDS), None)

    async def end(self, session_id: str, seconds: float) -> None:
        self._looked.pop(session_id, None)
        key = sign_ins.key_of("session", session_id)
        await self._run(lambda scope: sign_ins.end_session(scope, key, seconds), None)

    async def check_session(self, session_id: str) -> None:
        """Raises Refused when another process has ended it."""
        now = self._clock()
        if now - self._looked.get(session_id, -LOOK_SECONDS) < LOOK_SECONDS:
            return
        key = sign_ins.key_of("session", session_id)
        if await self._run(lambda scope: sign_ins.has_ended(scope, key), False):
            raise Refused(401, "This session was ended. Sign in again.")
        self._looked[session_id] = now
        self._looked.move_to_end(session_id)
        while len(self._looked) > SESSIONS_MAX:
            self._looked.popitem(last=False)

    def _address(self, address: str) -> str:
        return self._counter("address", network_of(address))

    def _account(self, name: str) -> str:
        return self._counter("account", name)

    def _counter(self, kind: str, what: str) -> str:
        number = int(self._keys.sign(f"failures of an {kind}", what)[:8], 16) % COUNTERS_MAX
        return sign_ins.key_of(kind, str(number))

    async def _run(self, make: Callable[[Scope], Op[T]], otherwise: T) -> T:
        try:
            bus = await self._stores.acting()
            return await bus.session.run(make(bus.scope))
        except CommandBusError as error:
            logger.warning("sign-ins are not shared with other processes: %s", error)
            return otherwise


def _place(address: str, name: str) -> str:
    return sign_ins.key_of("place", network_of(address), name)
