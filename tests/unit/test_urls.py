"""URLs as other libraries write them."""

import pytest

from commandbus.store.urls import shown_url, without_driver
from commandbus.sync import SyncCommandBus


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (
            "postgresql+psycopg://app:s3cret@db/shop?schema=bus",
            "postgresql://app:s3cret@db/shop?schema=bus",
        ),
        ("postgresql+asyncpg://db/shop", "postgresql://db/shop"),
        ("postgresql+psycopg2://db/shop", "postgresql://db/shop"),
        ("postgres://db/shop", "postgres://db/shop"),
        ("sqlite+aiosqlite:///jobs.db", "sqlite:///jobs.db"),
        ("memory://", "memory://"),
        ("mysql+pymysql://db/shop", "mysql+pymysql://db/shop"),
        ("sqlite:///a+b://c.db", "sqlite:///a+b://c.db"),
    ],
)
def test_the_name_of_a_driver_is_left_out(given: str, meant: str) -> None:
    assert without_driver(given) == meant


@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "postgresql+asyncpg", "postgres"])
def test_a_url_of_sqlalchemy_opens_postgresql_and_hides_its_secret(scheme: str) -> None:
    pytest.importorskip("psycopg")
    url = f"{scheme}://app:s3cret@db.example.org:6432/shop"
    bus = SyncCommandBus(url)
    assert type(bus.engine).__name__ == "PostgresEngine"
    assert shown_url(bus.url).endswith("://app:…@db.example.org:6432/shop")
    assert "s3cret" not in shown_url(bus.url) + shown_url(url) + repr(bus)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql:///shop", {"dbname": "shop"}),
        ("postgres:///shop?schema=bus", {"dbname": "shop"}),
        ("postgresql:///shop?host=/run/postgresql", {"dbname": "shop", "host": "/run/postgresql"}),
        ("postgresql:///shop?host=a,b&port=1,2", {"dbname": "shop", "host": "a,b", "port": "1,2"}),
        ("postgresql://", {}),
    ],
)
def test_a_url_without_a_host_is_the_server_that_libpq_takes(
    url: str, expected: dict[str, str]
) -> None:
    conninfo = pytest.importorskip("psycopg.conninfo")
    from commandbus.engines.postgres.location import parse
    from commandbus.interfaces.web.stores import reading_url

    for given in (url, reading_url(url) or ""):
        found = conninfo.conninfo_to_dict(parse(given).conninfo)
        assert {key: found.get(key) for key in ("dbname", "host", "port") if found.get(key)} == expected


def test_a_file_of_sqlalchemy_is_opened(tmp_path: object) -> None:
    with SyncCommandBus(f"sqlite+pysqlite:///{tmp_path}/jobs.db") as bus:
        bus.send("orders", "ship")
        assert bus.stats("orders").depth == 1
