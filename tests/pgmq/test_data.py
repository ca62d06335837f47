"""Erasing and promoting, where messages are beside the tables of the bus."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from commandbus import PermanentCommandError, RetryPolicy, TransientCommandError
from commandbus.errors import ConfigurationError
from commandbus.interfaces.cli.promotion import move
from commandbus.sync import SyncCommandBus, SyncTroubleshootingQueue, SyncWorker
from tests.pgmq.database import empty_url, tables

pytestmark = [pytest.mark.postgres, pytest.mark.pgmq]


def messages(url: str) -> str:
    """Everything in all queues and archives, as text."""
    with psycopg.connect(url) as connection:
        parts = [
            sql.SQL("select message::text from pgmq.{}").format(sql.Identifier(name))
            for name in tables(connection)
        ]
        return "\n".join(row[0] for row in connection.execute(sql.SQL(" union all ").join(parts)))


def test_archived_messages_of_what_is_erased_are_gone() -> None:
    url = empty_url()
    with SyncCommandBus(url, transport="pgmq") as bus:
        worker = SyncWorker(bus, "shop")
        for name in ("Ada", "Ben"):
            bus.send("shop", "buy", {"name": name})
            (taken,) = worker.receive(1)
            worker.fail(taken, PermanentCommandError("BROKEN", "no such article"))
            SyncTroubleshootingQueue(bus).operator_cancel(taken.command.command_id, reason="no use")
        assert "Ada" in messages(url)
        assert bus.acting("ann").erase(data={"name": "Ada"}, reason="asked").erased == 1
        left = messages(url)
    assert "Ada" not in left
    assert "Ben" in left


def test_what_was_promoted_is_taken_over_with_its_attempts(tmp_path: Path) -> None:
    url = empty_url()
    with SyncCommandBus(f"sqlite:///{tmp_path}/jobs.db") as old:
        sent = old.send("shop", "buy", {"n": 1}, max_attempts=5)
        worker = SyncWorker(old, "shop", retry_policy=RetryPolicy(backoff_schedule=[0]))
        (taken,) = worker.receive(1)
        worker.fail(taken, TransientCommandError("AGAIN", "later"))
        with (
            SyncCommandBus(url, transport="pgmq") as wrong,
            pytest.raises(ConfigurationError, match="Leave out transport=pgmq"),
        ):
            move(old, wrong, "here", url)
        with SyncCommandBus(url) as new:
            assert move(old, new, "here", url) == (1, 1)
    with SyncCommandBus(url, transport="pgmq") as bus:
        (taken,) = SyncWorker(bus, "shop").receive(1)
        assert (taken.command.command_id, taken.attempt) == (sent.command_id, 2)
