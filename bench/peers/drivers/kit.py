"""What every driver in Python shares: the tasks, and how a worker tells how far it is.

A driver is a process of its own, in the environment of its peer, so this file imports nothing but the
standard library. It gets one task as JSON, prints a line of JSON per event, and ends or is killed:

    setup    make the tables                                     {"ready"} {"done"}
    fill     send `count` commands, `chunk` at a time            {"ready"} {"done", "seconds"}
    singles  `senders` of one process send for `seconds`         {"ready"} {"done", "seconds", "count"}
    paced    send `count` commands, each stamped, `pause` apart, {"ready"} {"done"}
             with a high priority if the task says `urgent`
    work     carry out commands until killed                     {"ready"} {"begun", "first", …}
                                                                 {"late"} for each stamped command
    run      fill and work in one process, for stores that die with it

After "ready" it waits for a line on standard input, so that processes begin together. Moments are those
of the monotonic clock, which all processes of a machine share.
"""

import asyncio
import contextlib
import inspect
import json
import os
import random
import string
import sys
import tempfile
import threading
import time
from typing import Any

REPORT_SECONDS = 0.005
LETTERS = string.ascii_letters + string.digits


def emit(**event: Any) -> None:
    os.write(1, (json.dumps(event) + "\n").encode())


def ready() -> None:
    emit(ready=True)
    sys.stdin.readline()


def payload_of(size: int) -> dict[str, str]:
    """`size` bytes of JSON that hardly shrink when they are compressed."""
    length = max(1, size - len('{"text": ""}'))
    return {"text": "".join(random.Random(1).choices(LETTERS, k=length))}


class Tally:
    """How many handlers have begun; the harness hears of it every few milliseconds."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.busy: float = task.get("busy", 0.0)
        self._step = max(1, task.get("count", 0) // 100)
        self._begun = 0
        self._told = 0
        self._first = 0.0
        self._file = tempfile.TemporaryFile() if task.get("call") else None  # noqa: SIM115 - to the end

    def begin(self, data: Any = None) -> None:
        """A handler began, with this payload."""
        if not self._begun:
            self._first = time.monotonic()
        self._begun += 1
        if self._begun % self._step == 0:
            self._tell()
        if data is not None and "at" in data:
            emit(late=time.monotonic() - data["at"])
        if self._file is not None:  # one system call, as most handlers make at least
            os.pwrite(self._file.fileno(), b"0123456789abcdef", 0)

    def report(self) -> None:
        """From a thread of its own: what the steps left out."""
        threading.Thread(target=self._report, daemon=True).start()

    def _report(self) -> None:
        while True:
            time.sleep(REPORT_SECONDS)
            if self._told != self._begun:
                self._tell()

    def _tell(self) -> None:
        self._told = begun = self._begun
        emit(begun=begun, first=self._first, at=time.monotonic(), pid=os.getpid())


class Peer:
    """What a driver defines. Its methods are coroutines on one event loop, or all of them block."""

    blocking = False

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.url: str = task["url"]
        self.concurrency: int = task.get("concurrency", 10)

    def setup(self) -> Any:
        """Make the tables."""

    def open(self) -> Any:
        """Be ready to send."""

    def send(self, data: Any) -> Any:
        """Send one command."""
        raise AssertionError("a peer knows how to send")

    def send_urgent(self, data: Any) -> Any:
        """Send one command that is to begin before those of `send_many`."""
        raise AssertionError("a peer with priorities knows how to send what is urgent")

    def send_many(self, data: list[Any]) -> Any:
        """Send many at once, the fastest way there is."""
        raise AssertionError("a peer knows how to send many")

    def prepare(self, tally: Tally) -> Any:
        """Be ready to work, short of the first claim."""

    def work(self, tally: Tally) -> Any:
        """Carry out commands until killed."""
        raise AssertionError("a peer knows how to work")


async def finished(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def fill(peer: Peer) -> float:
    count, chunk = peer.task["count"], peer.task.get("chunk", 1_000)
    data = payload_of(peer.task.get("size", 100))
    began = time.monotonic()
    for first in range(0, count, chunk):
        await finished(peer.send_many([data] * min(chunk, count - first)))
    return time.monotonic() - began


async def singles(peer: Peer) -> tuple[int, float]:
    """Tasks of one loop where the peer has one, threads otherwise."""
    senders, seconds = peer.task["senders"], peer.task["seconds"]
    data = payload_of(100)
    counts = [0] * senders
    began = time.monotonic()
    until = began + seconds

    if not peer.blocking:

        async def send(number: int) -> None:
            while time.monotonic() < until:
                await peer.send(data)
                counts[number] += 1

        await asyncio.gather(*(send(number) for number in range(senders)))
    else:

        def send_blocking(number: int) -> None:
            while time.monotonic() < until:
                peer.send(data)
                counts[number] += 1

        threads = [threading.Thread(target=send_blocking, args=(n,)) for n in range(senders)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sum(counts), time.monotonic() - began


async def paced(peer: Peer) -> None:
    """At irregular intervals, so that no poll interval is met by luck."""
    chance = random.Random(1)
    send = peer.send_urgent if peer.task.get("urgent") else peer.send
    for _ in range(peer.task["count"]):
        pause = peer.task["pause"] * chance.uniform(0.5, 1.5)
        await finished(time.sleep(pause) if peer.blocking else asyncio.sleep(pause))
        await finished(send({"at": time.monotonic()}))


async def carry_out(peer: Peer) -> None:
    operation = peer.task["op"]
    if operation == "setup":
        await finished(peer.setup())
        emit(ready=True)
        emit(done=True)
        return
    tally = Tally(peer.task)
    if operation == "work":
        await finished(peer.prepare(tally))
        ready()
        tally.report()
        await finished(peer.work(tally))
        return
    await finished(peer.open())
    if operation == "run":
        emit(filled=await fill(peer))
        await finished(peer.prepare(tally))
        ready()
        tally.report()
        await finished(peer.work(tally))
    ready()
    if operation == "fill":
        emit(done=True, seconds=await fill(peer))
    elif operation == "singles":
        count, seconds = await singles(peer)
        emit(done=True, count=count, seconds=seconds)
    else:
        await paced(peer)
        emit(done=True)


def main(kind: type[Peer], loop: Any = None) -> None:
    """Run the one task of this process."""
    peer = kind(json.loads(sys.argv[1]))
    if peer.blocking:
        # No event loop: some libraries behave otherwise where one runs.
        with contextlib.suppress(StopIteration):
            carry_out(peer).send(None)
    else:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(carry_out(peer))
    # Pools and threads that nobody waits for.
    sys.stdout.flush()
    os._exit(0)
