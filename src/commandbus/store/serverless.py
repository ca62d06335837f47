"""Engines without a server: they have no connections, so none can be missing."""

from __future__ import annotations

from typing import NoReturn

from commandbus.errors import ConfigurationError
from commandbus.store.session import ConnectionUse, Demand


class Serverless:
    url: str

    @property
    def slots_max(self) -> int | None:
        return None

    def check_demand(self, demand: Demand) -> None: ...

    def meet(self, demand: Demand) -> None: ...

    def cut(self, seconds: float) -> int:
        return 0

    def replace(self) -> None: ...

    def leave_behind(self, worker: str) -> None: ...

    def loop_ended(self) -> None: ...

    @property
    def connections(self) -> ConnectionUse | None:
        return None

    def begin(self, demand: Demand) -> NoReturn:
        raise _no_transactions(self.url)

    async def begin_async(self, demand: Demand) -> NoReturn:
        raise _no_transactions(self.url)


def _no_transactions(url: str) -> ConfigurationError:
    return ConfigurationError(
        f"{url.partition(':')[0]}:// has no transactions for handlers; register them without "
        "transactional=True, or use postgresql://…."
    )
