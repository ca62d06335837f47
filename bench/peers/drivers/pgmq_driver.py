"""The package pgmq over PGMQ's own SQL: a loop that reads a batch, handles it and deletes it."""

from typing import Any

import kit
from pgmq import PGMQueue
from pgmq.install import install_pgmq_from_sql
from psycopg_pool import ConnectionPool

QUEUE = "bench"


class PgmqPeer(kit.Peer):
    blocking = True

    def setup(self) -> None:
        install_pgmq_from_sql(dsn=self.url)
        self.open()
        self.queue.create_queue(QUEUE)

    def open(self) -> None:
        pool = ConnectionPool(self.url, min_size=1, max_size=16, open=True)
        self.queue = PGMQueue(conn_string=self.url, pool=pool, init_extension=False)

    def send(self, data: Any) -> None:
        self.queue.send(QUEUE, data)

    def send_many(self, data: list[Any]) -> None:
        self.queue.send_batch(QUEUE, data)

    def prepare(self, tally: kit.Tally) -> None:
        self.open()

    def work(self, tally: kit.Tally) -> None:
        queue = self.queue
        while True:
            messages = queue.read(QUEUE, vt=30, qty=max(2, self.concurrency))
            if not messages:
                messages = queue.read_with_poll(QUEUE, vt=30, qty=max(2, self.concurrency))
            if messages:
                for message in messages:
                    tally.begin(message.message)
                queue.delete_batch(QUEUE, [message.msg_id for message in messages])


if __name__ == "__main__":
    kit.main(PgmqPeer)
