"""Command Bus without an event loop, on any engine: the URL says which."""

import time
from typing import Any

import kit
from commandbus_asyncio import DOMAIN, TYPE, CommandBusPeer

from commandbus import HandlerRegistry, SendRequest
from commandbus.sync import SyncCommandBus, SyncWorker


class ThreadsPeer(kit.Peer):
    blocking = True

    def setup(self) -> None:
        CommandBusPeer(self.task).setup()

    def open(self) -> None:
        self.bus = SyncCommandBus(self.url)
        self.bus.open()

    def send(self, data: Any) -> None:
        self.bus.send(DOMAIN, TYPE, data)

    def send_urgent(self, data: Any) -> None:
        self.bus.send(DOMAIN, TYPE, data, priority="high")

    def send_many(self, data: list[Any]) -> None:
        self.bus.send_many([SendRequest(DOMAIN, TYPE, one) for one in data])

    def prepare(self, tally: kit.Tally) -> None:
        registry, seconds = HandlerRegistry(), tally.busy

        def work(command: Any, context: Any) -> None:
            tally.begin(command.data)

        def sleep(command: Any, context: Any) -> None:
            tally.begin(command.data)
            time.sleep(seconds)

        registry.register(DOMAIN, TYPE, sleep if seconds else work)
        if not hasattr(self, "bus"):
            self.open()
        self.worker = SyncWorker(self.bus, DOMAIN, registry, concurrency=self.concurrency)

    def work(self, tally: kit.Tally) -> None:
        self.worker.run()


if __name__ == "__main__":
    kit.main(ThreadsPeer)
