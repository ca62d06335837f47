"""Gives up on servers that do not answer.

The server ends statements that take too long, but one that stands still, or has vanished behind a
proxy whose machine goes on acknowledging, ends nothing, and neither does TCP. So a thread looks after
every statement on its way: when its answer is overdue the connection is shut down, its
caller gets an error, and the next statement takes another connection.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from typing import Any

import psycopg

from commandbus.engines.postgres.statements import Urgent
from commandbus.settings import STATEMENT_SECONDS
from commandbus.store.op import Statement

ANSWER_SECONDS = STATEMENT_SECONDS + 5.0
"""The server gives up a statement by itself well before this."""
LOOK_SECONDS = 0.25
IDLE_SECONDS = 10.0
"""With nothing on its way for so long, the thread ends; the next statement starts another."""


class AnswerTimeout:
    def __init__(self) -> None:
        self._due: dict[Any, float] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self, connection: Any, statement: Statement) -> None:
        """A statement goes out: from now on its answer is awaited."""
        patience = ANSWER_SECONDS
        if isinstance(statement, Urgent):
            patience = min(patience, statement.seconds)
        self._due[connection] = time.monotonic() + patience
        if self._thread is None:
            self._start()

    def end(self, connection: Any) -> None:
        self._due.pop(connection, None)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="commandbus-watch", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        idle_since = time.monotonic()
        while True:
            time.sleep(LOOK_SECONDS)
            now = time.monotonic()
            due = list(self._due.items())
            for connection, moment in due:
                if moment <= now and self._due.pop(connection, None) is not None:
                    shut_down(connection)
            if due:
                idle_since = now
            elif now - idle_since > IDLE_SECONDS:
                with self._lock:
                    # One that began meanwhile has either seen no thread, or is seen here.
                    self._thread = None
                    if not self._due:
                        return
                    self._thread = threading.current_thread()


def shut_down(connection: Any) -> None:
    """What waits for this connection sees its end at once; closing it would only remove the file
    from under them."""
    with contextlib.suppress(OSError, psycopg.Error):  # it may be closed already
        file = socket.dup(connection.pgconn.socket)  # not os.dup: on Windows a socket is no file
        with socket.socket(fileno=file) as end:
            end.shutdown(socket.SHUT_RDWR)


def has_arrived(seconds: float, *sockets: int) -> bool:
    """Whether something arrives on one of these sockets within so many seconds."""
    if not hasattr(select, "poll"):  # Windows, where `select` takes a socket whatever its number
        return bool(select.select(sockets, (), (), seconds)[0])
    watch = select.poll()
    for one in sockets:
        watch.register(one, select.POLLIN)
    return bool(watch.poll(seconds * 1000))
