"""The probe port under attack: half requests, floods and odd requests hold up no orchestrator."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from commandbus import HandlerRegistry, ProbeServer
from commandbus.runtimes import small_http
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing.waiting import eventually
from commandbus.worker.readiness import StoreAnswer

HALF_OPEN = 1_000


@pytest.fixture
def probes() -> Iterator[ProbeServer]:
    registry = HandlerRegistry()
    registry.register("orders", "ship", lambda command, context: None)
    with SyncCommandBus("memory://") as bus:
        worker = SyncWorker(bus, "orders", registry)
        running = threading.Thread(target=worker.run, daemon=True)
        running.start()
        eventually(lambda: worker.is_running)
        try:
            with ProbeServer(worker) as server:
                yield server
        finally:
            worker.stop()
            running.join(10)


def get(server: ProbeServer, path: str, method: str = "GET", timeout: float = 10) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def test_a_thousand_half_requests_hold_up_no_probe_and_take_no_threads(probes: ProbeServer) -> None:
    with ExitStack() as attack:
        for _ in range(HALF_OPEN):
            half = attack.enter_context(socket.create_connection(("127.0.0.1", probes.port), 10))
            half.sendall(b"GET /livez HTTP/1.1\r\nHost: ")
        assert get(probes, "/livez") == 200
        assert get(probes, "/readyz") == 200
        threads = [one.name for one in threading.enumerate() if "probe" in one.name]
        assert len(threads) == 6, "one that reads, and one for each path"
        assert len(probes._server._requests) <= small_http.CONNECTIONS_MAX


FLOOD = """
import socket, sys, threading

def flood():
    while True:
        many = [socket.socket() for _ in range(50)]
        for one in many:
            try:
                one.settimeout(10)
                one.connect(("127.0.0.1", int(sys.argv[1])))
                one.sendall(b"GET /livez HTTP/1.1\\r\\n\\r\\n")
            except OSError:
                continue
        print("a round is over", flush=True)
        for one in many:
            one.close()

flooding = [threading.Thread(target=flood) for _ in range(3)]
[thread.start() for thread in flooding]
"""


def test_a_flood_of_whole_requests_does_not_crowd_out_an_orchestrator(probes: ProbeServer) -> None:
    """An orchestrator restarts a worker after three probes without an answer."""
    command = [sys.executable, "-c", FLOOD, str(probes.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as flood:
        assert flood.stdout is not None
        flood.stdout.readline()
        threading.Thread(target=flood.stdout.read, daemon=True).start()
        answers = [asked_later(probes, "/livez", seconds=3) for _ in range(20)]
        flood.kill()
    assert not any(answers[n : n + 3] == [None] * 3 for n in range(18)), answers
    assert answers.count(200) >= 10, answers


def asked_later(server: ProbeServer, path: str, seconds: float) -> int | None:
    """With a pause before, as orchestrators make one, though a longer one."""
    time.sleep(0.05)
    return asked(server, path, seconds)


def asked(server: ProbeServer, path: str, seconds: float = 1) -> int | None:
    """The status, or None when there is no answer within the second that orchestrators wait."""
    try:
        return get(server, path, timeout=seconds)
    except OSError:
        return None


def test_clients_that_read_no_answer_hold_up_no_probe(probes: ProbeServer) -> None:
    with ExitStack() as attack:
        for path in ("/livez", "/readyz", "/metrics"):
            for _ in range(20):
                slow = attack.enter_context(socket.socket())
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
                slow.connect(("127.0.0.1", probes.port))
                slow.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        assert asked(probes, "/livez") == 200
        assert asked(probes, "/readyz") == 200


def test_a_request_with_a_slow_body_is_answered_and_closed(probes: ProbeServer) -> None:
    with socket.create_connection(("127.0.0.1", probes.port), 10) as slow:
        slow.sendall(b"POST /livez HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n")
        assert slow.recv(65_536).startswith(b"HTTP/1.1 405")
        slow.settimeout(10)
        assert slow.recv(1) == b"", "the server does not wait for the body"


def test_a_half_request_is_closed_after_its_time(
    probes: ProbeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_http, "REQUEST_SECONDS", 0.1)
    with socket.create_connection(("127.0.0.1", probes.port), 10) as half:
        half.sendall(b"GET /livez")
        assert half.recv(1) == b"", "the server closed it"


def test_an_endless_request_is_closed(probes: ProbeServer) -> None:
    def send_without_end() -> None:
        with socket.create_connection(("127.0.0.1", probes.port), 10) as endless:
            while True:
                endless.sendall(b"X-More: of this\r\n" * 100)

    with pytest.raises(OSError, match=r"(?i)broken pipe|reset"):
        send_without_end()
    assert get(probes, "/livez") == 200


def test_a_body_is_not_taken_for_the_next_request(probes: ProbeServer) -> None:
    with socket.create_connection(("127.0.0.1", probes.port), 10) as smuggling:
        smuggling.sendall(
            b"GET /startupz HTTP/1.1\r\nContent-Length: 31\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n\r\n\r\n"
        )
        answer = b""
        while received := smuggling.recv(65_536):
            answer += received
    assert answer.count(b"HTTP/1.1 200") == 1
    assert b"Connection: close" in answer


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_only_get_is_served(probes: ProbeServer, method: str) -> None:
    assert get(probes, "/livez", method) == 405


def test_many_requests_for_readiness_ask_the_store_once(
    probes: ProbeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[None] = []
    run = StoreAnswer.run

    def counted(answer: StoreAnswer) -> None:
        asked.append(None)
        run(answer)

    monkeypatch.setattr(StoreAnswer, "run", counted)
    monkeypatch.setattr("commandbus.runtimes.probes.READY_SECONDS", 60)
    assert [get(probes, "/readyz") for _ in range(20)] == [200] * 20
    assert len(asked) <= 1  # none, if the verdict of before holds
    monkeypatch.setattr("commandbus.runtimes.probes.READY_SECONDS", 0)
    assert [get(probes, "/readyz") for _ in range(3)] == [200] * 3
    assert len(asked) >= 3
