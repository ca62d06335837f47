"""The bus lives in Django's own database: also in the test database, while tests run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from shutil import copy
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from commandbus.engines.postgres.location import parse
from commandbus.sync import SyncCommandBus
from commandbus.testing.postgres import create_database
from tests.support.django_site import set_up_django

set_up_django()

from django.core.exceptions import ImproperlyConfigured  # noqa: E402

from commandbus.integrations.django import location  # noqa: E402
from commandbus.integrations.django.backend import CommandBusBackend  # noqa: E402

SITE = """
import os, sys
import django
from django.conf import settings
from django.test.utils import get_runner

settings.configure(
    SECRET_KEY="for tests",
    USE_TZ=True,
    ROOT_URLCONF="test_shop",
    STATIC_URL="static/",
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    TEMPLATES=[
        {{
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {{
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            }},
        }}
    ],
    INSTALLED_APPS=[
        "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes",
        "django.contrib.messages", "django.contrib.sessions",
        "commandbus.integrations.django",
    ],
    DATABASES={{"default": {database!r}}},
    TASKS={{
        "default": {{
            "BACKEND": "commandbus.integrations.django.backend.CommandBusBackend",
            "OPTIONS": {{
                "DATABASE": "default", "TRANSACTIONAL": True, "REGISTRIES": ["test_shop.payments"],
                "RETRY": {{"max_attempts": 1}},
            }},
        }}
    }},
)
django.setup()
if len(sys.argv) > 1:
    from django.core.management import call_command
    call_command(*sys.argv[1:])
    sys.exit()
failures = get_runner(settings)(verbosity=1, interactive=False).run_tests(["test_shop"])
sys.exit(bool(failures))
"""

TESTS = Path(__file__).with_name("django_suite.py")


def run_site(folder: Path, database: dict[str, Any], *arguments: str) -> str:
    (folder / "site_of_shop.py").write_text(SITE.format(database=database))
    copy(TESTS, folder / "test_shop.py")
    run = subprocess.run(
        [sys.executable, "site_of_shop.py", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


def check_that_tests_leave_the_real_store_alone(
    folder: Path, database: dict[str, Any], url: str
) -> None:
    run_site(folder, database, "migrate", "-v", "0")
    run_site(folder, database, "makemigrations", "--check", "--dry-run")
    assert "no issues" in run_site(folder, database, "check", "--database", "default")
    with SyncCommandBus(url) as real:
        real.send("default", "test_shop.ship", {"task": "test_shop.ship", "args": [7], "kwargs": {}})
    assert "Ran 12 tests" in run_site(folder, database)
    with SyncCommandBus(url) as real:
        assert (real.stats("default").ready, real.stats("default").completed) == (1, 0)


def test_tests_on_sqlite_leave_the_real_store_alone(tmp_path: Path) -> None:
    name = str(tmp_path / "shop.sqlite3")
    test = {"NAME": str(tmp_path / "test.sqlite3")}
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": name, "TEST": test}
    database["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}
    check_that_tests_leave_the_real_store_alone(tmp_path, database, f"sqlite:///{name}")


CLONES = """
import django
from django.conf import settings

test = {"NAME": "test.sqlite3"}
database = {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3", "TEST": test}
apps = ["commandbus.integrations.django", "django.contrib.contenttypes", "django.contrib.auth"]
backend = "commandbus.integrations.django.backend.CommandBusBackend"
settings.configure(
    INSTALLED_APPS=apps,
    DATABASES={"default": database},
    TASKS={"default": {"BACKEND": backend, "OPTIONS": {"DATABASE": "default"}}},
    USE_TZ=True,
)
django.setup()
from django.contrib.auth.models import Permission
from django.db import connection

connection.creation.create_test_db(verbosity=0)
connection.creation.clone_test_db("1", verbosity=0)
expected = Permission.objects.count()
connection.close()
connection.settings_dict["NAME"] = "test_1.sqlite3"
print(expected, Permission.objects.count())
"""


def test_the_databases_of_parallel_tests_are_whole(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", CLONES], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    original, clone = map(int, run.stdout.split())
    assert original == clone > 0


@pytest.mark.postgres
def test_tests_on_postgresql_leave_the_real_store_alone(tmp_path: Path) -> None:
    from tests.postgres.database import server

    url = create_database(server(os.getpid()))
    parts = urlsplit(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username or "postgres",
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or parse_qs(parts.query)["host"][0],
        "PORT": parts.port or parse_qs(parts.query).get("port", [""])[0],
    }
    check_that_tests_leave_the_real_store_alone(tmp_path, database, url)


def test_a_url_beside_a_database_is_refused() -> None:
    options = {"DATABASE": "default", "URL": "sqlite:///other.db"}
    with pytest.raises(ImproperlyConfigured, match="leave URL out"):
        CommandBusBackend("default", {"OPTIONS": options})


def test_a_backend_that_names_no_bus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMMANDBUS_URL", raising=False)
    with pytest.raises(ImproperlyConfigured, match="where the bus is"):
        CommandBusBackend("default", {"OPTIONS": {}})


def test_a_database_in_memory_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="name a file"):
        location._sqlite("default", {"NAME": "file:memorydb_default?mode=memory&cache=shared"}, {})


def test_the_url_of_a_server_keeps_every_character_of_its_parts() -> None:
    settings = {
        "NAME": "shop/1",
        "USER": "ann@shop",
        "PASSWORD": "p@ss:w/rd?",
        "HOST": "/run/my sockets",
        "PORT": "5433",
        "OPTIONS": {"sslmode": "require", "isolation_level": 4},
    }
    found = parse(location._postgresql(settings, {"pool_size": 7}))
    assert found.pool_size == 7
    given = conninfo_to_dict(found.conninfo)
    assert (given["user"], given["password"]) == ("ann@shop", "p@ss:w/rd?")
    assert (given["host"], given["port"], given["dbname"]) == ("/run/my sockets", "5433", "shop/1")
    assert given["sslmode"] == "require"


def test_the_url_of_a_server_keeps_every_option_that_libpq_knows() -> None:
    options = {
        "channel_binding": "require",
        "ssl_min_protocol_version": "TLSv1.3",
        "target_session_attrs": "read-write",
        "connect_timeout": 5,
        "options": "-c lock_timeout=1000",
        "assume_role": "shop owner",
        "pool": True,
        "server_side_binding": True,
    }
    settings = {"NAME": "shop", "HOST": "a.example,b.example", "PORT": "5432,5433", "OPTIONS": options}
    given = conninfo_to_dict(parse(location._postgresql(settings, {})).conninfo)
    assert (given["host"], given["port"]) == ("a.example,b.example", "5432,5433")
    kept = ("channel_binding", "ssl_min_protocol_version", "target_session_attrs")
    assert [given[key] for key in kept] == [options[key] for key in kept]
    assert given["connect_timeout"] in (5, "5")
    assert r"-c lock_timeout=1000 -c role=shop\ owner" in given["options"]


@pytest.mark.postgres
def test_the_bus_assumes_the_role_that_django_assumes() -> None:
    from tests.postgres.database import server

    url = create_database(server(os.getpid()))
    parts = urlsplit(url)
    role = f"owner of {parts.path[1:]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("create role {}").format(sql.Identifier(role)))
    settings = {
        "NAME": parts.path[1:],
        "USER": parts.username or "postgres",
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or parse_qs(parts.query)["host"][0],
        "PORT": parts.port or parse_qs(parts.query).get("port", [""])[0],
        "OPTIONS": {"assume_role": role},
    }
    conninfo = parse(location._postgresql(settings, {})).conninfo
    with psycopg.connect(conninfo) as connection:
        assert connection.execute("select current_user").fetchone() == (role,)
