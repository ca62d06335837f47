"""Bulk sends make their messages here, all others at the server: they must not differ."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest

from commandbus import SendRequest
from commandbus.engines.postgres.sending import COPY_MIN
from commandbus.testing import Harness
from tests.pgmq.database import pgmq_configuration, shared_url

pytestmark = [pytest.mark.postgres, pytest.mark.pgmq]

FULL = SendRequest(
    "orders",
    "ship",
    {"text": 'quote " back\\slash tab\t line\n ünï', "n": [1.5, None, {"deep": True}]},
    correlation_id=UUID(int=1),
    causation_id=UUID(int=2),
    reply_to="answers",
    due_at=datetime(2090, 1, 1, 12, 30, 0, 5, tzinfo=UTC),
    expires_at=datetime(2091, 1, 1, tzinfo=UTC),
    max_attempts=7,
    tags=["express", 'quo"te'],
    headers={"trace": "t\\1", "commandbus": "of the sender"},
)
PLAIN = SendRequest("orders", "ship")
EMPTY = SendRequest("orders", "ship", "", headers={})

MESSAGES = """
    select message - 'command_id' - 'correlation_id' - 'created_at', headers - 'commandbus',
        case when vt > now() then vt end, message ->> 'command_id' = message ->> 'correlation_id',
        (message ->> 'created_at')::timestamptz between now() - interval '1 hour' and now(),
        length(message ->> 'created_at'), headers -> 'commandbus' ->> 1 = msg_id::text
    from pgmq.q_orders__commands order by msg_id"""


def sent_messages(bus: Harness, *requests: SendRequest) -> list[Any]:
    bus.send_many(requests)
    with psycopg.connect(shared_url(), autocommit=True) as connection:
        rows = connection.execute(MESSAGES).fetchall()
        connection.execute("truncate pgmq.q_orders__commands")
    return rows


def test_many_at_once_are_the_same_messages_as_few() -> None:
    bus = pgmq_configuration().open("threads")
    try:
        few = sent_messages(bus, FULL, PLAIN, EMPTY)
        assert [row[-1] for row in few] == [True] * 3
        assert sent_messages(bus, *[FULL, PLAIN, EMPTY] * COPY_MIN) == few * COPY_MIN
    finally:
        bus.close()


def test_many_of_several_kinds_go_to_their_queues_and_run() -> None:
    bus = pgmq_configuration().open("threads")
    try:
        requests = [
            SendRequest(domain, "ship", n, priority=priority)
            for n in range(COPY_MIN)
            for domain in ("orders", "billing")
            for priority in ("high", "low")
        ]
        bus.send_many(requests)
        received = bus.receive(bus.worker("orders"), batch_size=3 * COPY_MIN)
        wanted = [*range(COPY_MIN), *range(COPY_MIN)]
        assert [each.command.data for each in received] == wanted
        assert bus.stats("billing").depth == 2 * COPY_MIN
    finally:
        bus.close()
