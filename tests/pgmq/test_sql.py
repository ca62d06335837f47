"""The SQL of the transport: every statement prepares, and the hot ones go by index."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import RawCursor

from commandbus.engines.postgres import location
from commandbus.engines.postgres.claim_query import suspect_values
from commandbus.engines.postgres.pgmq.installation import install
from commandbus.engines.postgres.pgmq.queues import FATES, MEMBERS, Queue, Texts, templates
from commandbus.engines.postgres.settle_query import LISTS, REQUEUES
from commandbus.engines.postgres.templates import Query
from commandbus.store.suspects import SuspectLimit
from commandbus.sync import SyncCommandBus
from tests.pgmq.database import empty_url, pgmq_configuration

pytestmark = [pytest.mark.postgres, pytest.mark.pgmq]

ROWS = 20_000


@pytest.fixture
def connection() -> Iterator[Any]:
    url = empty_url()
    with SyncCommandBus(url, transport="pgmq") as bus:
        bus.send("orders", "ship")
        bus.send("orders", "ship", priority="high")
    place = location.parse(url)
    with psycopg.connect(place.conninfo, autocommit=True, cursor_factory=RawCursor) as connection:
        yield connection


def queues(connection: Any) -> list[Queue]:
    rows = connection.execute(templates("commandbus").queues.encode(), ["{orders}", "me"]).fetchall()
    return [Queue(*row[:-1]) for row in rows]


MADE: dict[str, Any] = {
    "claim": lambda texts, found: texts.claim(found, fresh=False),
    "claim_fresh": lambda texts, found: texts.claim(found, fresh=True),
    "renew": lambda texts, found: texts.renew(found),
    "put": lambda texts, found: texts.put(found),
    "admit": lambda texts, found: texts.admit(found),
    "insert": lambda texts, found: texts.insert(found),
    "settle": lambda texts, found: texts.settle(found, lock=False),
    "settle locked": lambda texts, found: texts.settle(found, lock=True),
    "quick": lambda texts, found: texts.settle_quickly(found, "all"),
    "quick ends": lambda texts, found: texts.settle_quickly(found, "ends"),
    "quick plain": lambda texts, found: texts.settle_quickly(found, "plain"),
}
"""Statements with named parameters."""
OVER_QUEUES = sorted(
    name
    for name, sql in vars(templates("commandbus")).items()
    if re.search(r"@(each|any|sum) ", sql)
    and sql.startswith(("with", "select", "@any"))
    and name not in {*MADE, "looks", "fresh_looks"}
)
PLAIN = sorted(
    name
    for name, sql in vars(templates("commandbus")).items()
    if "@" not in sql and sql[-1] != "," and not sql.startswith("copy")
)


@pytest.mark.parametrize("name", [*OVER_QUEUES, *MADE])
def test_every_statement_over_queues_prepares(connection: Any, name: str) -> None:
    texts = Texts("commandbus", last_read_at=True)
    found = queues(connection)
    sql = MADE[name](texts, found).sql if name in MADE else texts(name, found)
    assert "@" not in sql.replace("@>", "")
    assert ("for update" in sql) or name != "settle locked"
    connection.execute(f"prepare checked as {sql}".encode())
    assert connection.execute("select count(*) from pg_prepared_statements").fetchone() == (1,)


@pytest.mark.parametrize("name", PLAIN)
def test_every_plain_statement_prepares(connection: Any, name: str) -> None:
    connection.execute(f"prepare checked as {getattr(templates('commandbus'), name)}".encode())
    assert connection.execute("select count(*) from pg_prepared_statements").fetchone() == (1,)


def fill(connection: Any) -> None:
    connection.execute(
        "insert into pgmq.q_orders__commands (vt, message, headers)"
        f" select now(), '{{}}', '{{}}' from generate_series(1, {ROWS})"
    )


@pytest.mark.parametrize("statistics", ["none", "fresh"])
@pytest.mark.parametrize("name", ["claim", "claim_fresh", "settle", "quick", "renew"])
def test_the_hot_statements_go_by_index(connection: Any, name: str, statistics: str) -> None:
    fill(connection)
    if statistics == "fresh":
        connection.execute("analyze")
    query: Query = MADE[name](Texts("commandbus", last_read_at=True), queues(connection))
    values: dict[str, Any] = {
        "domain": "orders", "worker": "w", "unproved_domain": None, "origin": "me", "notify": True,
        "wanted": 100, "firsts": "{0,0}", "lasts": "{99,99}", "duration": 30_000_000,
        **suspect_values(SuspectLimit(8)),
    }  # fmt: skip
    for columns in (*LISTS, FATES):
        values |= columns.empty
    if name == "renew":
        values |= MEMBERS(lease_id=[1], queue_id=[1], msg_id=[1], read_ct=[1], seq=[1])
        values["leases"] = "{1}"
    else:
        values |= {"deleted": '{"{1,2}","{3}"}', "read_count": 1, "leases": 1, "messages": 3}
    explain = f"explain (costs off) {query.sql}".encode()
    rows = connection.execute(explain, query.params(values), prepare=True).fetchall()
    plan = "\n".join(row[0] for row in rows)
    assert not re.findall(r"Seq Scan on (?:q_|command\b|outcome\b)", plan), plan
    walks = re.findall(r"Index (?:Only )?Scan using (q_\w+) on [^\n]*\n(\s+[^\n]*)", plan)
    assert walks
    assert all("Index Cond" in following for _, following in walks), plan


MANY = 1_000


@pytest.fixture
def many(connection: Any) -> tuple[Queue, list[int]]:
    """A queue, and the numbers of messages in it that were read once."""
    queue = next(one for one in queues(connection) if one.name == "orders__commands")
    rows = connection.execute(
        "insert into pgmq.q_orders__commands (vt, read_ct, message, headers)"
        f" select now() + interval '1 minute', 1, '{{}}', '{{}}' from generate_series(1, {MANY})"
        " returning msg_id"
    ).fetchall()
    return queue, [msg_id for (msg_id,) in rows]


def test_giving_many_back_costs_the_same_for_each(
    connection: Any, many: tuple[Queue, list[int]]
) -> None:
    """A worker that is slow or dead gives back hundreds at once, under a short statement timeout."""
    queue, ids = many
    values: dict[str, Any] = {"unproved_domain": "orders", "worker": "w", "origin": "me"}
    for columns in LISTS:
        values |= columns.empty
    same = {"proof": [0] * MANY, "seq": ids}
    values |= {"notify": True} | REQUEUES(
        **same, priority=[5] * MANY, attempts=[1] * MANY, crashes=[1] * MANY, releases=[2] * MANY,
        keyed=[False] * MANY, delay=[0] * MANY,
    )  # fmt: skip
    values |= FATES(
        **same, queue_id=[queue.queue_id] * MANY, msg_id=ids, read_ct=[1] * MANY, fate=[2] * MANY
    )
    query = Texts("commandbus", last_read_at=True).settle([queue], lock=False)
    assert most_handled(connection, query, values) <= 5 * MANY
    back = "from pgmq.q_orders__commands where vt <= now() and read_ct = 1 order by msg_id"
    assert connection.execute(f"select headers -> 'commandbus' {back}").fetchall() == [
        ([msg_id, msg_id, 1, 2],) for msg_id in ids
    ]


def test_renewing_many_costs_the_same_for_each(connection: Any, many: tuple[Queue, list[int]]) -> None:
    queue, ids = many
    ((lease_id,),) = connection.execute(
        "insert into commandbus.lease (domain, worker, claimed_at, until, seqs)"
        " select 'orders', 'w', 0, commandbus.now_us() + 60000000, $1 returning lease_id",
        [ids],
    ).fetchall()
    values = MEMBERS(
        lease_id=[lease_id] * MANY, queue_id=[queue.queue_id] * MANY, msg_id=ids, read_ct=[1] * MANY,
        seq=ids,
    )  # fmt: skip
    values |= {"leases": f"{{{lease_id}}}", "duration": 3_600_000_000}
    query = Texts("commandbus", last_read_at=True).renew([queue])
    assert most_handled(connection, query, values) <= 5 * MANY
    prolonged = "select count(*) from pgmq.q_orders__commands where vt > now() + interval '30 minutes'"
    assert connection.execute(prolonged).fetchone() == (MANY,)


def most_handled(connection: Any, query: Query, values: dict[str, Any]) -> float:
    """How many rows a node of the plan had in its hands at most, whatever it did with them."""
    explain = f"explain (analyze, format json) {query.sql}".encode()
    (([plan],),) = connection.execute(explain, query.params(values)).fetchall()
    return max(handled(plan["Plan"]))


def handled(node: dict[str, Any]) -> Iterator[float]:
    """How many rows each node of a plan had in its hands."""
    parts = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Join Filter")
    yield sum(node.get(part, 0) for part in parts) * node["Actual Loops"]
    for below in node.get("Plans", ()):
        yield from handled(below)


@pytest.mark.parametrize(
    ("domain", "priority", "replies", "expected"),
    [
        ("orders", 5, False, "orders__commands"),
        ("orders", 5, True, "orders__replies"),
        ("orders", 0, False, "orders__commands_p0"),
        ("orders", -7, False, "orders__commands_n7"),
    ],
)
def test_plain_domains_keep_their_names(
    connection: Any, domain: str, priority: int, replies: bool, expected: str
) -> None:
    assert queue_of(connection, domain, priority, replies) == expected


def test_other_domains_get_names_that_pgmq_takes_and_tells_apart(connection: Any) -> None:
    domains = ["Orders", "oRders", "or.ders", "or-ders", "or:ders", "d" * 63, "d" * 62, "orders"]
    names = [queue_of(connection, domain, -32_768, False) for domain in domains]
    assert len(set(names)) == len(domains)
    assert all(re.fullmatch(r"[a-z_][a-z0-9_]{0,46}", name) for name in names)


def test_a_bus_in_another_schema_has_other_queues() -> None:
    """PGMQ has one schema for all; a shared queue would give the commands of one bus to the other."""
    first = pgmq_configuration()
    second = dataclasses.replace(first, url=f"{first.url}&schema=second_bus")
    install(second.url)
    one, other = first.open("threads"), second.open("threads")
    try:
        command_id = one.send()
        assert other.receive(other.worker()) == []
        assert one.take(one.worker()).command.command_id == command_id
    finally:
        one.close()
        other.close()
        with psycopg.connect(first.url, autocommit=True) as connection:
            for (queue,) in connection.execute("select queue from second_bus.pgmq_queue").fetchall():
                connection.execute("select pgmq.drop_queue(%s)", [queue])
            connection.execute("drop schema second_bus cascade")


def queue_of(connection: Any, domain: str, priority: int, replies: bool) -> str:
    sql = b"select commandbus.pgmq_queue_of($1, $2, $3)"
    return str(connection.execute(sql, [domain, priority, replies]).fetchone()[0])
