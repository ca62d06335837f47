"""DBOS: a workflow without steps per command, from a queue that is polled every 20 ms."""

import asyncio
import threading
from typing import Any

import kit
import sqlalchemy
from dbos import DBOS, DBOSClient

POLL_SECONDS = 0.02
QUEUE = "bench"
OPTIONS: Any = {"queue_name": QUEUE, "workflow_name": "work"}


class DbosPeer(kit.Peer):
    blocking = True

    def __init__(self, task: dict[str, Any]) -> None:
        super().__init__(task)
        self.url = self.url.replace("postgresql://", "postgresql+psycopg://", 1)

    def launch(self) -> None:
        config: Any = {
            "name": "bench",
            "system_database_url": self.url,
            "log_level": "ERROR",
            "application_version": "1",
        }
        DBOS(config=config)

        @DBOS.workflow(name="work")
        async def work(data: Any) -> None:
            self.tally.begin(data)
            if self.tally.busy:
                await asyncio.sleep(self.tally.busy)

        DBOS.launch()

    def setup(self) -> None:
        self.tally = kit.Tally(self.task)
        self.launch()
        DBOS.register_queue(QUEUE, worker_concurrency=100, polling_interval_sec=POLL_SECONDS)

    def open(self) -> None:
        self.engine = sqlalchemy.create_engine(self.url, pool_size=16)
        self.client = DBOSClient(system_database_engine=self.engine, application_name="bench")

    def send(self, data: Any) -> None:
        self.client.enqueue(OPTIONS, data)

    def send_many(self, data: list[Any]) -> None:
        with self.engine.begin() as connection:
            for one in data:
                self.client.enqueue_in_transaction(connection, OPTIONS, one)

    def work(self, tally: kit.Tally) -> None:
        self.tally = tally
        self.launch()
        DBOS.register_queue(
            QUEUE, worker_concurrency=self.concurrency, polling_interval_sec=POLL_SECONDS
        )
        threading.Event().wait()


if __name__ == "__main__":
    kit.main(DbosPeer)
