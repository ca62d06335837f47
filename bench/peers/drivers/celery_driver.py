"""Celery over Redis: a prefork pool of as many processes as there are cores, results ignored."""

import os
import time
from typing import Any

import kit
from celery import Celery
from celery.signals import worker_process_init


class CeleryPeer(kit.Peer):
    blocking = True

    def __init__(self, task: dict[str, Any]) -> None:
        super().__init__(task)
        self.app = Celery("bench", broker=self.url)
        self.app.conf.update(
            task_ignore_result=True,
            worker_prefetch_multiplier=64,
            worker_redirect_stdouts=False,
            worker_hijack_root_logger=False,
            worker_send_task_events=False,
            broker_connection_retry_on_startup=True,
            broker_pool_limit=16,
        )
        tally = self.tally = kit.Tally(task)

        @self.app.task(name="work")
        def work(data: Any) -> None:
            tally.begin(data)
            if tally.busy:
                time.sleep(tally.busy)

        self.sent = work

    def setup(self) -> None:
        with self.app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=20, interval_start=0.1)
        self.app.control.purge()

    def send(self, data: Any) -> None:
        self.sent.delay(data)

    def send_many(self, data: list[Any]) -> None:
        for one in data:
            self.sent.delay(one)

    def work(self, tally: kit.Tally) -> None:
        # Handlers run in children, each of which tells of itself.
        worker_process_init.connect(lambda **_: self.tally.report(), weak=False)
        worker = self.app.Worker(
            pool="prefork",
            concurrency=os.cpu_count(),
            loglevel="ERROR",
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )
        worker.start()


if __name__ == "__main__":
    kit.main(CeleryPeer)
