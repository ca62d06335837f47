"""SAQ on PostgreSQL; it has no bulk send, so sends go twenty at a time, as many as its pool has."""

import asyncio
from typing import Any

import kit
from psycopg_pool import AsyncConnectionPool
from saq import Worker
from saq.queue.postgres import PostgresQueue

POOL_SIZE = 20


class SaqPeer(kit.Peer):
    async def setup(self) -> None:
        await self.open()

    async def open(self) -> None:
        pool = AsyncConnectionPool(self.url, min_size=4, max_size=POOL_SIZE, open=False)
        self.queue = PostgresQueue(pool=pool, name="bench", manage_pool_lifecycle=True)
        await self.queue.connect()

    async def send(self, data: Any) -> None:
        await self.queue.enqueue("work", data=data)

    async def send_many(self, data: list[Any]) -> None:
        for first in range(0, len(data), POOL_SIZE):
            await asyncio.gather(*(self.send(one) for one in data[first : first + POOL_SIZE]))

    async def prepare(self, tally: kit.Tally) -> None:
        await self.open()

        async def work(context: Any, *, data: Any) -> None:
            tally.begin(data)
            if tally.busy:
                await asyncio.sleep(tally.busy)

        self.worker = Worker(self.queue, [("work", work)], concurrency=self.concurrency)

    async def work(self, tally: kit.Tally) -> None:
        await self.worker.start()


if __name__ == "__main__":
    kit.main(SaqPeer)
