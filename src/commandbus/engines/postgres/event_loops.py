"""Which event loops PostgreSQL can be used from."""

from __future__ import annotations

import asyncio

from commandbus.errors import ConfigurationError


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Refuse the default loop of Windows, which cannot wait until a socket of libpq is readable."""
    proactor = getattr(asyncio, "ProactorEventLoop", None)  # elsewhere there is none
    if proactor is not None and isinstance(loop, proactor):
        raise ConfigurationError(
            "PostgreSQL cannot be used from the ProactorEventLoop, the default of Windows, because it "
            "does not wait for the sockets of libpq; run your program with "
            "`asyncio.run(main(), loop_factory=commandbus.new_event_loop)` (before Python 3.12 with "
            "`asyncio.Runner(loop_factory=…)`), or use SyncCommandBus."
        )
