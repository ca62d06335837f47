"""Command Bus on an event loop, on any engine: the URL says which."""

import asyncio
from typing import Any

import kit

from commandbus import CommandBus, HandlerRegistry, SendRequest, Worker, new_event_loop
from commandbus.sync import SyncCommandBus

DOMAIN, TYPE = "bench", "work"


class CommandBusPeer(kit.Peer):
    def setup(self) -> None:
        if self.task.get("variant") == "pgmq":
            from commandbus.engines.postgres.pgmq.installation import install

            install(self.url.partition("&transport=")[0])
        elif self.url.startswith("postgresql"):
            from commandbus.engines.postgres.schema import upgrade

            upgrade(self.url)
        else:
            SyncCommandBus(self.url).open()

    async def open(self) -> None:
        self.bus = await CommandBus(self.url).open()

    async def send(self, data: Any) -> None:
        await self.bus.send(DOMAIN, TYPE, data)

    async def send_urgent(self, data: Any) -> None:
        await self.bus.send(DOMAIN, TYPE, data, priority="high")

    async def send_many(self, data: list[Any]) -> None:
        await self.bus.send_many([SendRequest(DOMAIN, TYPE, one) for one in data])

    async def prepare(self, tally: kit.Tally) -> None:
        registry, seconds = HandlerRegistry(), tally.busy

        async def work(command: Any, context: Any) -> None:
            tally.begin(command.data)

        async def sleep(command: Any, context: Any) -> None:
            tally.begin(command.data)
            await asyncio.sleep(seconds)

        registry.register(DOMAIN, TYPE, sleep if seconds else work)
        if not hasattr(self, "bus"):
            await self.open()
        self.worker = Worker(self.bus, DOMAIN, registry, concurrency=self.concurrency)

    async def work(self, tally: kit.Tally) -> None:
        await self.worker.run()


if __name__ == "__main__":
    kit.main(CommandBusPeer, new_event_loop)
