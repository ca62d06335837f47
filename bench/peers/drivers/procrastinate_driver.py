"""Procrastinate with psycopg's pool."""

import asyncio
from typing import Any

import kit
import procrastinate


class ProcrastinatePeer(kit.Peer):
    def __init__(self, task: dict[str, Any]) -> None:
        super().__init__(task)
        connector = procrastinate.PsycopgConnector(conninfo=self.url, min_size=1, max_size=20)
        self.app = procrastinate.App(connector=connector)
        self.tally = kit.Tally(task)

        @self.app.task(name="work", queue="bench")
        async def work(data: Any) -> None:
            self.tally.begin(data)
            if self.tally.busy:
                await asyncio.sleep(self.tally.busy)

        self.sent = work

    async def setup(self) -> None:
        async with self.app.open_async():
            await self.app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        await self.app.open_async()

    async def send(self, data: Any) -> None:
        await self.sent.defer_async(data=data)

    async def send_many(self, data: list[Any]) -> None:
        await self.sent.batch_defer_async(*({"data": one} for one in data))

    async def prepare(self, tally: kit.Tally) -> None:
        self.tally = tally
        await self.open()

    async def work(self, tally: kit.Tally) -> None:
        await self.app.run_worker_async(
            queues=["bench"], concurrency=self.concurrency, install_signal_handlers=False
        )


if __name__ == "__main__":
    kit.main(ProcrastinatePeer)
