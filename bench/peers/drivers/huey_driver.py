"""Huey on SQLite at the same durability: fsync is on, which is synchronous=FULL in WAL mode."""

import threading
import time
from typing import Any

import kit
from huey import SqliteHuey

POLL_SECONDS = 0.005


class HueyPeer(kit.Peer):
    blocking = True

    def __init__(self, task: dict[str, Any]) -> None:
        super().__init__(task)
        self.huey = SqliteHuey("bench", filename=self.url, fsync=True, store_none=False)
        self.tally = kit.Tally(task)
        lock = threading.Lock()

        @self.huey.task(name="work")
        def work(data: Any) -> None:
            with lock:
                self.tally.begin(data)
            if self.tally.busy:
                time.sleep(self.tally.busy)

        self.sent = work

    def send(self, data: Any) -> None:
        self.sent(data)

    def send_many(self, data: list[Any]) -> None:
        for one in data:
            self.sent(one)

    def work(self, tally: kit.Tally) -> None:
        self.tally = tally
        consumer = self.huey.create_consumer(
            workers=self.concurrency,
            periodic=False,
            initial_delay=POLL_SECONDS,
            max_delay=POLL_SECONDS,
            backoff=1.0,
            check_worker_health=False,
        )
        consumer.start()
        threading.Event().wait()


if __name__ == "__main__":
    kit.main(HueyPeer)
