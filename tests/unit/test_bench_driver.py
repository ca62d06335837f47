"""A driver's process, and what it tells the harness."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.peers.child import Child, DriverFailed, cpu_seconds
from bench.peers.environments import DRIVERS

FAKE = """
import kit

class Fake(kit.Peer):
    blocking = True
    sent = 0

    def send(self, data):
        Fake.sent += 1

    def send_many(self, data):
        assert all(len(str(one)) >= 90 for one in data)
        Fake.sent += len(data)

    def work(self, tally):
        for number in range(self.task["count"]):
            tally.begin({"text": "x"})
        if self.task.get("is_broken"):
            raise ValueError("the peer is not well")
        import time
        time.sleep(60)

kit.main(Fake)
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "kit.py").write_text((DRIVERS / "kit.py").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "fake.py").write_text(FAKE, encoding="utf-8")
    return [sys.executable, str(tmp_path / "fake.py")]


def test_a_worker_waits_for_its_start_and_tells_how_far_it_is(command: list[str]) -> None:
    with Child(command, {"op": "work", "url": "", "count": 250}, {}) as child:
        child.wait_for("ready")
        assert child.next(0.05) is None
        child.go()
        begun = 0
        while begun < 250:
            event = child.wait_for("begun")
            assert event["first"] <= event["at"]
            begun = event["begun"]
        assert child.peak_megabytes() > 1
        assert cpu_seconds(child.pid) >= 0


def test_the_error_of_a_driver_is_shown(command: list[str]) -> None:
    task = {"op": "work", "url": "", "count": 1, "is_broken": True}
    with Child(command, task, {}) as child:
        child.wait_for("ready")
        child.go()
        with pytest.raises(DriverFailed, match="the peer is not well"):
            child.wait_for("never")


def test_silence_is_an_error_after_a_while(command: list[str]) -> None:
    with (
        Child(command, {"op": "work", "url": "", "count": 0}, {}) as child,
        pytest.raises(DriverFailed, match="no 'begun' within"),
    ):
        child.wait_for("begun", 0.1)


def test_sends_are_counted_and_timed(command: list[str]) -> None:
    for task, expected in (
        ({"op": "fill", "count": 2_500}, {"done", "seconds"}),
        ({"op": "singles", "senders": 3, "seconds": 0.05}, {"done", "seconds", "count"}),
        ({"op": "paced", "count": 2, "pause": 0.001}, {"done"}),
        ({"op": "setup"}, {"done"}),
    ):
        run = subprocess.run(
            [*command, json.dumps({"url": "", **task})],
            input="go\n",
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        ready, done = (json.loads(line) for line in run.stdout.splitlines())
        assert ready == {"ready": True}
        assert set(done) == expected
