"""What cannot be ported fails at import; a worker process runs an app."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from commandbus.errors import ConfigurationError
from commandbus.integrations import celery
from commandbus.sync import SyncCommandBus
from commandbus.testing import drain
from tests.support.django_site import set_up_django

OLD_SETTINGS = "OldSettings = type('OldSettings', (), {'CELERYBEAT_SCHEDULE': {}})"
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
    (f"from {celery.__name__}.signals import task_prerun", 1, "middleware"),
    (f"from {celery.__name__}.contrib.abortable import AbortableTask", 1, "Coming from Celery"),
    (f"from {celery.__name__} import Bogus", 1, "Coming from Celery"),
    ("app = Celery('a')\napp.conf.task_routes = (print,)", 2, r"\{'queue': 'name'\}"),
    ("@shared_task\ndef f(x): ...\nf.chunks([(1,)], 10)", 3, "group of tasks"),
    ("@shared_task\ndef f(x): ...\nf.s(1).link(f.s())", 3, "link="),
    ("Celery('a').AsyncResult('x').forget()", 1, "db prune"),
    ("app = Celery('a')\napp.register_task(app.Task())", 2, r"method run\(\)"),
    ("app = Celery('a')\napp.config_from_object(OldSettings)\napp.tasks", 2, "namespace='CELERY'"),
    (f"from {celery.__name__}.schedules import solar", 1, "Use a crontab"),
]


@pytest.mark.parametrize(("code", "line", "cure"), REFUSED, ids=[code[-40:] for code, _, _ in REFUSED])
def test_what_cannot_be_ported_fails_at_import_with_file_and_line(
    code: str, line: int, cure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = f"from {celery.__name__} import Celery, shared_task\n"
    second = f"from {celery.__name__}.schedules import crontab; {OLD_SETTINGS}\n"
    (tmp_path / "ported.py").write_text(first + second + code)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("ported", None)

    with pytest.raises(ConfigurationError, match=cure) as refusal:
        __import__("ported")

    assert f"{tmp_path / 'ported.py'}:{line + 2}" in str(refusal.value)


def test_names_that_tasks_lack_are_still_attribute_errors(app: celery.Celery) -> None:
    @app.task
    def add(x: int) -> int:
        return x

    assert not hasattr(add, "bogus")
    assert not hasattr(add.s(1), "bogus")
    with pytest.raises(ConfigurationError, match="return"):
        _ = add.replace
    with pytest.raises(ConfigurationError, match="thread cannot be killed"):
        add.delay(1).revoke(terminate=True)
    with pytest.raises(ConfigurationError, match="thread cannot be killed"):
        app.control.revoke(add.delay(1).id, terminate=True)


def test_settings_are_items_too(app: celery.Celery) -> None:
    app.conf["task_default_queue"] = "mail"
    assert (app.conf["task_default_queue"], app.conf.get("timezone"), app.conf.get("x", 1)) == (
        "mail",
        "UTC",
        1,
    )
    with pytest.raises(ConfigurationError, match="results are kept in the store"):
        app.conf["result_backend"] = "rpc://"


def test_routes_are_patterns_and_the_name_itself_goes_first(app: celery.Celery) -> None:
    app.conf.task_routes = {
        "*.mail.*": {"queue": "mail"},
        "shop.mail.urgent": "urgent",
        "shop.report_[ab]": {"queue": "reports"},
    }
    names = ("shop.mail.greet", "shop.mail.urgent", "shop.report_a", "shop.report_c")
    assert [app.queue_of(name, {}) for name in names] == ["mail", "urgent", "reports", "celery"]


def test_states_and_ids_have_the_names_of_celery(app: celery.Celery) -> None:
    @app.task
    def add(x: int) -> int:
        return x

    given = celery.uuid()
    sent = add.apply_async((1,), task_id=given)
    assert sent.id == given
    assert sent.state == celery.states.PENDING
    assert sent.state in celery.states.UNREADY_STATES
    drain(app.bus, app.registry)
    assert sent.state == celery.states.SUCCESS
    assert sent.state in celery.states.READY_STATES


def test_a_task_is_sent_when_the_transaction_of_django_commits(app: celery.Celery) -> None:
    set_up_django()
    from django.db import transaction

    @app.task
    def add(x: int) -> int:
        return x

    with transaction.atomic():
        add.delay_on_commit(1)
        transaction.set_rollback(True)
    with transaction.atomic():
        add.delay_on_commit(2)
        add.apply_async_on_commit((3,), countdown=0)
        assert not drain(app.bus, app.registry)
    assert sorted(record.result for record in drain(app.bus, app.registry)) == [2, 3]


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
