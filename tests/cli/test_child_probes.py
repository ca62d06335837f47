"""The probes of several worker processes, put together."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from commandbus.interfaces.cli import child_probes
from commandbus.interfaces.cli.child_probes import ChildProbes, merged
from commandbus.interfaces.cli.supervision import PORT_FILE, Supervision
from commandbus.runtimes.small_http import SmallServer

PAGE = """\
# HELP commandbus_polls_total Claims.
# TYPE commandbus_polls_total counter
commandbus_polls_total{result="found"} 3
# HELP commandbus_claim_seconds How long.
# TYPE commandbus_claim_seconds histogram
commandbus_claim_seconds_bucket{le="0.1"} 1
commandbus_claim_seconds_bucket{le="+Inf"} 2
commandbus_claim_seconds_sum 0.5
commandbus_claim_seconds_count 2
# HELP commandbus_worker_up Running.
# TYPE commandbus_worker_up gauge
commandbus_worker_up 1
"""


def test_families_stay_together_and_samples_name_their_process() -> None:
    lines = merged({0: PAGE, 2: PAGE}).splitlines()
    assert lines[:4] == [
        "# HELP commandbus_polls_total Claims.",
        "# TYPE commandbus_polls_total counter",
        'commandbus_polls_total{process="0",result="found"} 3',
        'commandbus_polls_total{process="2",result="found"} 3',
    ]
    assert lines[6:8] == [
        'commandbus_claim_seconds_bucket{process="0",le="0.1"} 1',
        'commandbus_claim_seconds_bucket{process="0",le="+Inf"} 2',
    ]
    assert lines[-2:] == ['commandbus_worker_up{process="0"} 1', 'commandbus_worker_up{process="2"} 1']
    assert len(lines) == 6 + 2 * 6
    assert len(set(lines)) == len(lines)


def test_without_a_process_there_is_nothing_to_show() -> None:
    assert merged({}) == ""


GOOD, BAD, FROZEN, GONE = "good", "bad", "frozen", "gone"


@contextmanager
def children(*states: str) -> Iterator[ChildProbes]:
    """Worker processes as their probes show them."""
    probes = ChildProbes(Supervision("127.0.0.1", 0, None, watchdog=True), len(states))
    with ExitStack() as stack:
        stack.enter_context(probes.served())
        for index, state in enumerate(states):
            file = Path(probes.environment(index)[PORT_FILE])
            if state == FROZEN:
                listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                file.write_text(str(listening.getsockname()[1]))
            elif state != GONE:
                answer = (200 if state == GOOD else 503, "application/json", json.dumps({"is": state}))
                server = SmallServer("127.0.0.1", 0, {}, answer)
                server.start()
                stack.callback(server.close)
                file.write_text(str(server.port))
        yield probes


@pytest.mark.parametrize(
    ("states", "live", "ready"),
    [
        ([GOOD, GOOD], True, True),
        ([GOOD, BAD], False, True),
        ([GOOD, FROZEN], False, True),
        ([GOOD, GONE], True, True),
        ([BAD, BAD], False, False),
        ([GONE, GONE], True, False),
    ],
)
def test_all_that_are_there_are_live_and_one_is_ready(
    monkeypatch: pytest.MonkeyPatch, states: list[str], live: bool, ready: bool
) -> None:
    monkeypatch.setattr(child_probes, "ASK_SECONDS", 0.5)
    with children(*states) as probes:
        status, _, text = probes._answer("/livez", "live", all)
        assert (status, json.loads(text)["live"]) == (200 if live else 503, live)
        assert len(json.loads(text)["processes"]) == len(states)
        status, _, text = probes._answer("/readyz", "ready", any)
        assert (status, json.loads(text)["ready"]) == (200 if ready else 503, ready)
        assert probes.is_ready() is ready


def test_the_port_of_a_process_that_died_is_forgotten() -> None:
    with children(GOOD) as probes:
        assert probes.is_ready()
        probes.environment(0)
        assert not probes.is_ready()
