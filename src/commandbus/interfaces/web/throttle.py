"""Bounds on guessing: failed sign-ins per address and per account, with delays that grow.

An address may fail a few times; then each further failure doubles the time until its next try. An
account has the same bound over all addresses, except for addresses from which its owner has signed in
before: guesses must not lock the owner out.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from commandbus.interfaces.web.refusals import Refused

FAILURES_FREE = 5
DELAY_FIRST_SECONDS, DELAY_MAX_SECONDS = 1.0, 60.0
FORGET_SECONDS = 900.0
AT_ONCE_MAX = 2
"""Checks of one address that may run at the same time: none of them has failed yet."""
KEYS_MAX = 10_000
NAME_CHARACTERS_MAX = 100


class Throttle:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._running: dict[str, int] = {}
        self._trusted: OrderedDict[tuple[str, str], None] = OrderedDict()

    @contextmanager
    def attempt(self, address: str, name: str) -> Iterator[None]:
        """Around one check of a secret. Raises Refused while the address or the account has to wait."""
        source, name = network_of(address), name[:NAME_CHARACTERS_MAX]
        wait = self._wait(f"address {source}")
        if (source, name) not in self._trusted:
            wait = max(wait, self._wait(f"account {name}"))
        if self._running.get(source, 0) >= AT_ONCE_MAX:
            wait = max(wait, DELAY_FIRST_SECONDS)
        if wait > 0:
            raise too_many(wait)
        self._running[source] = self._running.get(source, 0) + 1
        try:
            yield
        finally:
            self._running[source] -= 1
            if not self._running[source]:
                del self._running[source]

    def failed(self, address: str, name: str) -> None:
        for key in (f"address {network_of(address)}", f"account {name[:NAME_CHARACTERS_MAX]}"):
            count = self._failed(key)
            self._failures[key] = (count + 1, self._clock())
            self._failures.move_to_end(key)
        while len(self._failures) > KEYS_MAX:
            self._failures.popitem(last=False)

    def succeeded(self, address: str, name: str) -> None:
        """The address keeps its failures: a guesser may have an account of its own."""
        self._failures.pop(f"account {name}", None)
        self._trusted[network_of(address), name] = None
        self._trusted.move_to_end((network_of(address), name))
        while len(self._trusted) > KEYS_MAX:
            self._trusted.popitem(last=False)

    def _failed(self, key: str) -> int:
        count, at = self._failures.get(key, (0, 0.0))
        return count if self._clock() - at < FORGET_SECONDS else 0

    def _wait(self, key: str) -> float:
        delay = delay_after(self._failed(key))
        return max(0.0, self._failures[key][1] + delay - self._clock()) if delay else 0.0


def delay_after(count: int) -> float:
    """Seconds from the last of so many failures to the next try."""
    if count < FAILURES_FREE:
        return 0.0
    return min(DELAY_MAX_SECONDS, DELAY_FIRST_SECONDS * 2.0 ** min(count - FAILURES_FREE, 20))


def too_many(wait: float) -> Refused:
    return Refused(429, f"Too many sign-ins failed. Try again in {wait:.0f} s.", retry_after=wait)


def network_of(address: str) -> str:
    """The address; of IPv6 the network of 64 bits, which one machine may have to itself."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:100]
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
