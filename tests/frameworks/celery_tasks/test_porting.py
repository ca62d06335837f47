"""What cannot be ported fails at import; a worker process runs an app."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from commandbus.errors import ConfigurationError
from commandbus.integrations import celery
from commandbus.sync import SyncCommandBus

REFUSED = [
    ("app = Celery('a', broker='redis://localhost')", 1, "Give the URL of the store"),
    ("app = Celery('a', backend='rpc://')", 1, "results are kept in the store"),
    ("app = Celery('a')\napp.conf.task_always_eager = True", 2, r"call drain\(app.bus, app.registry\)"),
    ("app = Celery('a')\napp.conf.task_serializer = 'pickle'", 2, "Payloads and results are JSON"),
    ("app = Celery('a')\napp.conf.update(worker_concurrency=4)", 2, "--concurrency N"),
    ("@shared_task\ndef f(*args): ...", 1, "name the parameters"),
    ("@shared_task\ndef f(x, /): ...", 1, "remove the `/`"),
    ("@shared_task\nasync def f(x): ...", 1, "@registry.command"),
    ("@shared_task\ndef f(x: object): ...", 1, "has no JSON form"),
    ("@shared_task\ndef f(x: 'Order'): ...", 1, "import its types at the top"),
    ("@shared_task(serializer='pickle')\ndef f(x): ...", 1, "pass ids instead of objects"),
    ("@shared_task(pydantic=True)\ndef f(x): ...", 1, "decoded and checked anyway"),
    ("@shared_task(rate_limit='often')\ndef f(x): ...", 1, "rate"),
    ("@shared_task(base=object)\ndef f(x): ...", 1, "Derive it from Task"),
    ("crontab(day_of_week=1, day_of_month=1)", 1, "keep one of them"),
    ("crontab(minute='61')", 1, "not a cron expression"),
    (f"from {celery.__name__} import signals", 1, "middleware"),
    (f"from {celery.__name__}.schedules import solar", 1, "Use a crontab"),
]


@pytest.mark.parametrize(("code", "line", "cure"), REFUSED, ids=[code[-40:] for code, _, _ in REFUSED])
def test_what_cannot_be_ported_fails_at_import_with_file_and_line(
    code: str, line: int, cure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = f"from {celery.__name__} import Celery, shared_task\n"
    second = f"from {celery.__name__}.schedules import crontab\n"
    (tmp_path / "ported.py").write_text(first + second + code)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("ported", None)

    with pytest.raises(ConfigurationError, match=cure) as refusal:
        __import__("ported")

    assert f"{tmp_path / 'ported.py'}:{line + 2}" in str(refusal.value)


def test_a_worker_process_runs_the_tasks_of_an_app(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'shop.db'}"
    (tmp_path / "ported.py").write_text(
        f"from {celery.__name__} import Celery\n"
        f"app = Celery('ported', broker={store!r}, include=['ported_tasks'])\n"
    )
    (tmp_path / "ported_tasks.py").write_text(
        "from ported import app\n\n@app.task\ndef add(x, y):\n    return x + y\n"
    )
    sent = subprocess.run(
        [sys.executable, "-c", "import ported_tasks; print(ported_tasks.add.delay(2, 3).id)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    arguments = ["worker", "ported:app.registry", "--url", store]
    worker = subprocess.Popen([sys.executable, "-m", "commandbus", *arguments], cwd=tmp_path)
    try:
        with SyncCommandBus(store) as bus:
            assert bus.wait(sent, timeout=30).result == 5
    finally:
        worker.terminate()
        worker.wait(30)
