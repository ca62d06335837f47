"""An application of 14 tasks runs on Celery, and then on Command Bus with changed imports, with equal
results: in a worker process, and in a test with `drain`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SHOP = Path(__file__).with_name("celery_shop") / "shop.py"
PORTED = "commandbus.integrations.celery"
BEFORE_SETTINGS = '''
import time
from pathlib import Path
from uuid import uuid4
from kombu.transport.filesystem import Channel
from kombu.utils.json import dumps
folder = Path(__file__).parent
for name in ("queue", "results", "control"):
    (folder / name).mkdir(exist_ok=True)
broker_url = "filesystem://"
broker_transport_options = {
    "data_folder_in": str(folder / "queue"),
    "data_folder_out": str(folder / "queue"),
    "control_folder": str(folder / "control"),
    "polling_interval": 0.1,  # instead of a second before each task
}
result_backend = f"file://{folder / 'results'}"
task_serializer = "json"
task_acks_late = True
worker_prefetch_multiplier = 1


def put(channel, queue, payload, **options):
    """Kombu's own lets a reader take a file that is not written yet, and the message is lost."""
    name = f"{round(time.monotonic() * 1000)}_{uuid4()}.{queue}.msg"
    whole = folder / "queue" / name
    part = whole.with_name(f"{name}.part")
    part.write_text(dumps(payload))
    part.replace(whole)


Channel._put = put
'''
AFTER_SETTINGS = """
from pathlib import Path
broker_url = f"sqlite:///{Path(__file__).parent / 'shop.db'}"
task_serializer = "json"
task_acks_late = True
worker_prefetch_multiplier = 1
"""
PLAY = "import json, shop; print(json.dumps(shop.play()))"
PLAY_IN_A_TEST = """
import json, shop, threading
from commandbus.sync import SyncCommandBus
from commandbus.testing import FakeClock, drain

clock = FakeClock()
shop.app.bus = SyncCommandBus("memory://", clock=clock).open()

def work():
    while True:
        drain(shop.app.bus, shop.app.registry)
        clock.advance(1)

threading.Thread(target=work, daemon=True).start()
print(json.dumps(shop.play()))
"""


def write_shop(folder: Path, *, ported: bool) -> dict[str, str]:
    """The application in a folder of its own; returns the environment in which it runs."""
    text = SHOP.read_text()
    if ported:
        text = re.sub(r"^from celery\b", f"from {PORTED}", text, flags=re.MULTILINE)
    (folder / "shop.py").write_text(text)
    (folder / "shop_settings.py").write_text(AFTER_SETTINGS if ported else BEFORE_SETTINGS)
    (folder / "notes.txt").touch()
    # Celery loads the settings of Django where it finds them named.
    others = ("COMMANDBUS_", "DJANGO_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return {**clean, "SHOP_FOLDER": str(folder), "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}


@contextmanager
def working(command: list[str], folder: Path, environment: dict[str, str]) -> Iterator[None]:
    with (folder / "worker.log").open("w") as log:
        worker = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            worker.terminate()
            try:
                worker.wait(15)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait(15)


def play(folder: Path, command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    with working(command, folder, environment):
        return run(PLAY, folder, environment)


def play_on_celery(folder: Path, tries: int = 3) -> dict[str, Any]:
    """Celery's transport over files loses a message now and then: then the play does not end."""
    old = folder / f"before-{tries}"
    old.mkdir()
    try:
        return play(old, celery_worker(), write_shop(old, ported=False))
    except subprocess.TimeoutExpired:
        if tries == 1:
            raise
    return play_on_celery(folder, tries - 1)


def run(script: str, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    played = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=75,
        check=False,
    )
    log = folder / "worker.log"
    assert played.returncode == 0, f"{played.stderr}\n{log.read_text() if log.exists() else ''}"
    found: dict[str, Any] = json.loads(played.stdout)
    return found


def comparable(found: dict[str, Any]) -> dict[str, Any]:
    """Without the texts that each side words for itself: ids, and what a time limit says. Of a task
    whose result is ignored Celery never knows the state."""
    found["results"]["ignored"][0] = "ignored"
    for result in found["results"].values():
        if result[1] in ("TimeLimitExceeded", "ChordError"):
            del result[2:]
    return found


def celery_worker() -> list[str]:
    options = ["-A", "shop", "worker", "-B", "-c", "4", "-Q", "celery,audit", "-l", "WARNING"]
    return [sys.executable, "-m", "celery", *options, "-s", "beat.db"]


def commandbus_worker() -> list[str]:
    return [sys.executable, "-m", "commandbus", "worker", "shop:app.registry", "--threads", "-c", "8"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform == "win32", reason="the prefork pool of Celery needs fork")
def test_an_application_of_14_tasks_has_equal_results_before_and_after_the_port(tmp_path: Path) -> None:
    pytest.importorskip(
        "celery", reason="CELERY IS NOT INSTALLED: the port is not compared; pip install celery"
    )
    new = tmp_path / "after"
    new.mkdir()
    on_celery = play_on_celery(tmp_path)
    environment = write_shop(new, ported=True)
    store = {"COMMANDBUS_URL": f"sqlite:///{new / 'shop.db'}"}
    on_the_bus = play(new, commandbus_worker(), {**environment, **store})

    before, after = comparable(on_celery), comparable(on_the_bus)
    names = before["results"] | after["results"]
    seen = {name: (before["results"].get(name), after["results"].get(name)) for name in names}
    assert {name: both for name, both in seen.items() if both[0] != both[1]} == {}
    assert (after["notes"], after["uploads"]) == (before["notes"], before["uploads"])
    assert after["results"]["chord"] == ["SUCCESS", 20]
    assert after["results"]["hard limit"][:2] == ["FAILURE", "TimeLimitExceeded"]
    assert (after["uploads"], after["texts"], before["texts"]) == (2, True, True)
    assert after["results"]["group after a group"] == ["a group", [6, 6]]


@pytest.mark.slow
def test_the_ported_application_runs_in_a_test_with_drain(tmp_path: Path) -> None:
    found = run(PLAY_IN_A_TEST, tmp_path, write_shop(tmp_path, ported=True))

    results = found["results"]
    assert {name: result for name, result in results.items() if result[0] == "FAILURE"} == {
        "declined": ["FAILURE", "PaymentDeclined", "card 13 is blocked"],
        "errback": ["FAILURE", "PaymentDeclined", "card 13 is blocked"],
        "exhausted": ["FAILURE", "ConnectionError", "the store is away"],
        "broken chain": ["FAILURE", "ConnectionError", "the store is away"],
    }
    assert results["chord of chains"] == ["SUCCESS", 12]
    assert results["chain with a group"] == ["SUCCESS", 46]
    assert results["soft limit"] == ["SUCCESS", {"pages": 9, "partial": True}]
    assert results["hard limit"] == ["SUCCESS", "catalog.csv"]  # no timeout passes in a drain
    assert found["uploads"] == 2
