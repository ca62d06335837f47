"""PgQueuer with asyncpg on uvloop; the concurrency is the size of its batches."""

import asyncio
import json
from typing import Any

import asyncpg
import kit
import uvloop
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries


class PgQueuerPeer(kit.Peer):
    async def setup(self) -> None:
        await Queries(AsyncpgDriver(await asyncpg.connect(self.url))).install()

    async def open(self) -> None:
        pool = await asyncpg.create_pool(self.url, min_size=1, max_size=16)
        self.queries = Queries(AsyncpgPoolDriver(pool))

    async def send(self, data: Any) -> None:
        await self.queries.enqueue("work", json.dumps(data).encode())

    async def send_urgent(self, data: Any) -> None:
        await self.queries.enqueue("work", json.dumps(data).encode(), 10)

    async def send_many(self, data: list[Any]) -> None:
        bodies = [json.dumps(one).encode() for one in data]
        await self.queries.enqueue(["work"] * len(data), bodies, [0] * len(data))

    async def prepare(self, tally: kit.Tally) -> None:
        queries = Queries(AsyncpgDriver(await asyncpg.connect(self.url)))
        self.manager = QueueManager(queries)

        @self.manager.entrypoint("work")
        async def work(job: Job) -> None:
            tally.begin(json.loads(job.payload or b"{}"))
            if tally.busy:
                await asyncio.sleep(tally.busy)

    async def work(self, tally: kit.Tally) -> None:
        if tally.busy:
            # Without a cap it would start more at once than asked for.
            half = max(1, self.concurrency // 2)
            await self.manager.run(batch_size=half, max_concurrent_tasks=self.concurrency)
        await self.manager.run(batch_size=self.concurrency)


if __name__ == "__main__":
    kit.main(PgQueuerPeer, uvloop.new_event_loop)
