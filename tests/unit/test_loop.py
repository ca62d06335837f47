"""The event loop for workers."""

from __future__ import annotations

import asyncio
import socket
import sys
from importlib.util import find_spec

import pytest

from commandbus import new_event_loop
from commandbus.runtimes.asyncio import loop as loops

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is asyncio's own")


def test_it_is_uvloop_where_that_is_installed() -> None:
    loop = new_event_loop()
    try:
        assert type(loop).__module__.partition(".")[0] == (
            "uvloop" if find_spec("uvloop") else "asyncio"
        )
    finally:
        loop.close()


def test_without_uvloop_waits_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    waits: list[float] = []

    def select(readers: object, writers: object, others: object, timeout: float) -> None:
        waits.append(timeout)

    monkeypatch.setattr(loops.select, "select", select)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(asyncio.sleep(0.0015))
    assert 0.0005 < waits[0] <= 0.0015, "not rounded to a whole millisecond"


def test_what_arrives_ends_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)

    async def hear() -> bytes:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            loop = asyncio.get_running_loop()
            loop.call_later(0.001, theirs.send, b"!")
            return await asyncio.wait_for(loop.sock_recv(ours, 1), 60)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert runner.run(hear()) == b"!"


def test_numbers_too_large_for_select_are_left_to_epoll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    monkeypatch.setattr(loops, "SELECT_MAX", 0)
    monkeypatch.setattr(loops.select, "select", None)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert runner.run(asyncio.sleep(0.0015, "slept")) == "slept"
