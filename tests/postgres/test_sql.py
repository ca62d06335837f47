"""The SQL itself: every statement prepares, and the hot ones go by index, whatever the statistics."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from psycopg import RawCursor

from commandbus.engines.postgres import location
from commandbus.engines.postgres.bounds import (
    EVERYTHING,
    FORGET_SECONDS,
    PAUSE_MAX_SECONDS,
    Bounds,
)
from commandbus.engines.postgres.claim_query import claim_query, suspect_values
from commandbus.engines.postgres.statements import in_schema, queries
from commandbus.engines.postgres.templates import BIGINT, TEXT, Columns, compile_query
from commandbus.store.suspects import SuspectLimit
from tests.postgres.database import empty_url
from tests.support.extent import sample
from tests.support.statements import made

pytestmark = pytest.mark.postgres

ROWS = sample(200_000, 1_000_000)


@pytest.fixture
def connection() -> Any:
    place = location.parse(empty_url())
    with psycopg.connect(place.conninfo, autocommit=True, cursor_factory=RawCursor) as connection:
        yield connection


MADE = made()
PREPARABLE = MADE | {
    name: sql for name, sql in vars(queries("commandbus")).items() if not sql.startswith("copy")
}
PREPARABLE |= {
    f"limited {name}": sql
    for name, sql in vars(queries("commandbus", limited=True)).items()
    if sql != PREPARABLE.get(name, sql)
}


@pytest.mark.parametrize("name", sorted(PREPARABLE))
def test_every_statement_prepares(connection: psycopg.Connection[Any], name: str) -> None:
    connection.execute(f"prepare checked as {PREPARABLE[name]}")
    prepared = connection.execute("select count(*) from pg_prepared_statements").fetchone()
    assert prepared == (1,)


def test_every_query_is_put_into_its_schema() -> None:
    for name, sql in [*vars(queries("commandbus")).items(), *MADE.items()]:
        assert sql.strip(), name
        assert "commandbus." not in sql, f"{name} was not put into its schema"


def test_names_become_numbers_in_a_statement_and_its_parts() -> None:
    rows = Columns("rows", seq=BIGINT, result=TEXT.unless(None))
    query = compile_query(
        "select :worker::text, 'a :b {c}' from {rows} as r where {which} -- it's :no parameter",
        [rows],
        which="r.seq = :seq and :worker <> ''",
    )
    assert query.sql == (
        "select $1::text, 'a :b {c}' from rows from (unnest($2::text::bigint[]),"
        " unnest($3::text::text[])) as r (seq, result) where r.seq = $4 and $1 <> ''"
        " -- it's :no parameter"
    )
    values = rows(seq=[1, 2], result=[None, None]) | {"worker": "w", "seq": 7, "other": 0}
    assert query.params(values) == ("w", "{1,2}", "{}", 7)


def test_columns_that_are_missing_or_not_declared_are_named() -> None:
    rows = Columns("rows", seq=BIGINT, result=TEXT)
    with pytest.raises(TypeError, match=r"rows: these columns .*: reason, result"):
        rows(seq=[1], reason=[None])


def test_the_name_of_a_schema_replaces_the_stand_in_only() -> None:
    assert in_schema("select commandbus.now_us(), 'commandbus'", "mine") == (
        "select \"mine\".now_us(), 'commandbus'"
    )


def fill(connection: psycopg.Connection[Any]) -> None:
    connection.execute("set statement_timeout = 0")
    connection.execute(
        "insert into commandbus.queue (domain, priority, seq, available_at)"
        f" select 'd' || n % 5, 5, n, 0 from generate_series(1, {ROWS}) n"
    )
    connection.execute(
        "insert into commandbus.command (seq, command_id, domain, command_type, data, correlation_id,"
        " priority, created_at, due_at)"
        " select n, lpad(to_hex(n), 32, '0')::uuid, 'd' || n % 5, 't', '{}',"
        f" lpad(to_hex(n), 32, '0')::uuid, 5, 0, 0 from generate_series(1, {ROWS}) n"
    )
    connection.execute(
        "insert into commandbus.scheduled (domain, due_at, seq, priority)"
        f" select 'd' || n % 5, 9e15, n, 5 from generate_series(1, {ROWS}) n"
    )


def plan_of(connection: psycopg.Connection[Any], name: str, params: list[Any], mode: str) -> str:
    connection.execute(f"set plan_cache_mode = force_{mode}_plan")
    sql = f"explain (costs off) {PREPARABLE[name]}"
    rows = connection.execute(sql.encode(), params, prepare=True).fetchall()
    return "\n".join(row[0] for row in rows)


VALUES = {
    "partition": "d1", "wanted": 100, "worker": "w", "duration": 30_000_000, "domain": "d1",
    "followers": 100, "chain": 20, **EVERYTHING, **suspect_values(SuspectLimit(8)),
}  # fmt: skip
FRESH = list(claim_query("commandbus", True, "chains").params(VALUES))
CLAIM = list(claim_query("commandbus", False, "chains").params(VALUES))
FRESH_PLAIN = list(claim_query("commandbus", True, "plain").params(VALUES))
PLAIN = list(claim_query("commandbus", False, "plain").params(VALUES))
PARAMS: dict[str, list[Any]] = {
    "claim": CLAIM,
    "claim_fresh": FRESH,
    "claim_plain": PLAIN,
    "claim_fresh_plain": FRESH_PLAIN,
    "sweep": ["{d1,d2}", 2_000_000],
    "next_moment": ["{d1}", "w"],
    "renew": ["{1,2}", 30_000_000],
    "aged": ["d1", 60_000_000, 100],
}


def check_plans(connection: psycopg.Connection[Any], statistics: str) -> None:
    for name, params in PARAMS.items():
        for mode in ("generic", "custom"):
            plan = plan_of(connection, name, params, mode)
            told = f"{name}, {statistics} statistics, {mode} plan\n{plan}"
            walked = re.findall(r"Seq Scan on (\w+)", plan)
            # Few rows, and each look at them wants all of them.
            assert set(walked) <= {"tally", "lease"}, told
            if name.startswith("claim"):
                assert "Index Scan using queue_pkey on queue" in plan, told
                assert "Index Scan using command_pkey on command" in plan, told
                assert "Tid Scan on queue" in plan, told


@pytest.mark.timeout(300)
def test_the_hot_statements_go_by_index_through_many_rows(
    connection: psycopg.Connection[Any],
) -> None:
    """With the statistics of an empty table, without any, and with fresh ones."""
    for table in ("queue", "command", "scheduled"):
        connection.execute(f"alter table commandbus.{table} set (autovacuum_enabled = off)")
    try:
        connection.execute("analyze")
        fill(connection)
        check_plans(connection, "stale")
        claim_reads_little(connection)
        forget_statistics(connection)
        check_plans(connection, "no")
        claim_reads_little(connection)
        connection.execute("analyze")
        check_plans(connection, "fresh")
        claim_reads_little(connection)
    finally:
        for table in ("queue", "command", "scheduled"):
            connection.execute(f"alter table commandbus.{table} reset (autovacuum_enabled)")


def test_a_fresh_claim_leaves_suspects_to_the_other(connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        "insert into commandbus.queue (domain, priority, seq, available_at, crashes)"
        " select 'd1', 5, n, 0, n % 3 from generate_series(1, 6) n"
    )
    fresh = connection.execute(MADE["claim_fresh"].encode(), FRESH).fetchall()
    suspects = connection.execute(MADE["claim"].encode(), CLAIM).fetchall()
    assert [row[0] for row in fresh] == [3, 6]
    assert [row[0] for row in suspects] == [1, 2, 4, 5]


CHANGES = ("none", "a gap", "a retry", "a priority", "an outcome", "a receipt", "keys")


@pytest.mark.parametrize("change", CHANGES)
def test_a_claim_without_chains_takes_what_one_with_them_does(
    connection: psycopg.Connection[Any], change: str
) -> None:
    """Consecutive commands are read in one walk, and others one by one: the answer is the same."""
    connection.execute(
        "insert into commandbus.command (seq, command_id, domain, command_type, data, correlation_id,"
        " priority, created_at, due_at) select n, lpad(to_hex(n), 32, '0')::uuid, 'd1', 't', n::text,"
        " lpad(to_hex(n), 32, '0')::uuid, 5, 0, 0 from generate_series(1, 40) n"
    )
    connection.execute(
        "insert into commandbus.queue (domain, priority, seq, available_at, keyed)"
        " select 'd1', 5, n, 0, $1 from generate_series(1, 40) n".replace("$1", str(change == "keys"))
    )
    connection.execute({
        "none": "select 1",
        "a gap": "delete from commandbus.queue where seq = 7",
        "a retry": "update commandbus.queue set attempts = 2, releases = 1 where seq = 9",
        "a priority": "update commandbus.queue set priority = 0 where seq = 30",
        "an outcome": "insert into commandbus.outcome (seq, status, attempts, crashes, finished_at)"
        " values (12, 'COMPLETED', 1, 0, 0)",
        "a receipt": "insert into commandbus.receipt (first_seq, last_seq, lease_id, finished_at,"
        " members, worker, ran) values (12, 14, 1, 0, 2, 'w', '{1,null,1}')",
        "keys": "select 1",
    }[change])  # fmt: skip
    answers = []
    for name, params in [("claim_fresh", FRESH), ("claim_fresh_plain", FRESH_PLAIN)]:
        with connection.transaction(force_rollback=True):
            rows = connection.execute(MADE[name].encode(), params).fetchall()
            lease = connection.execute("select seqs, unusual::jsonb from commandbus.lease").fetchone()
        # All but the number of the lease, the time, and the age by it.
        kept = [index for index in range(len(rows[0])) if index not in (1, 2, 9)]
        answers.append(([[row[index] for index in kept] for row in rows], lease))
    assert answers[0] == answers[1]
    assert len(answers[0][0]) == (39 if change == "a gap" else 40)
    dropped = {"an outcome": 1, "a receipt": 2}.get(change, 0)
    assert sum("t" not in row for row in answers[0][0]) == dropped


def forget_statistics(connection: psycopg.Connection[Any]) -> None:
    """As if the tables had never been looked at."""
    ours = "relnamespace = 'commandbus'::regnamespace"
    connection.execute(
        f"delete from pg_statistic where starelid in (select oid from pg_class where {ours})"
    )
    connection.execute(
        f"update pg_class set reltuples = -1, relpages = 0 where {ours} and relkind in ('r', 'i')"
    )


def claim_reads_little(connection: psycopg.Connection[Any]) -> None:
    """A claim reads no more of a large table than it takes."""
    sql = f"explain (analyze, buffers, format json) {MADE['claim']}"
    found = connection.execute(sql.encode(), CLAIM, prepare=True).fetchone()
    assert found is not None
    top = found[0][0]["Plan"]
    assert top["Actual Rows"] == 100
    assert top["Shared Hit Blocks"] + top["Shared Read Blocks"] < 3_000


def test_bounds_leave_out_what_was_taken_and_nothing_else() -> None:
    bounds = Bounds()
    assert bounds.ranges("d", 0.0) is None
    bounds.looked("d", 0.0, 0.0, everywhere=True)
    bounds.took("d", [(0, 7), (5, 3), (5, 9)])
    found = bounds.ranges("d", 0.01)
    assert found is not None
    ranges = ranges_of(found)

    def covered(key: tuple[int, int]) -> bool:
        return sum(low <= key < high for low, high in ranges) == 1

    assert [covered(key) for key in [(0, 7), (0, 1), (5, 9), (5, 1)]] == [False] * 4
    fresh = [(-5, 1), (0, 8), (3, 1), (5, 10), (6, 1), (100, 2**62)]
    assert all(covered(key) for key in fresh)
    assert bounds.ranges("d", FORGET_SECONDS) is None


def ranges_of(values: dict[str, str]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    columns = [[int(n) for n in column.strip("{}").split(",")] for column in values.values()]
    return [((a, b), (c, d)) for a, b, c, d in zip(*columns, strict=True)]


def test_what_has_aged_is_looked_at_first_and_once() -> None:
    bounds = Bounds()
    bounds.looked("d", 0.0, 0.0, everywhere=True)
    bounds.took("d", [(0, 7), (10, 3)])
    found = bounds.ranges_after("d", 0.01, [(10, 9), (5, 4)])
    ranges = ranges_of(found)
    assert ranges[:2] == [((10, 4), (10, 9)), ((5, 0), (5, 4))]
    keys = [(-1, 1), (0, 8), (3, 1), (5, 1), (5, 4), (10, 4), (10, 8), (10, 9), (11, 0)]
    for key in keys:
        assert sum(low <= key < high for low, high in ranges) == 1, key
    assert not any(low <= key < high for low, high in ranges for key in [(0, 7), (10, 3)])


def walk(bounds: Bounds, now: float, seconds: float) -> None:
    """A claim without bounds, and one with them, which take so long and a millisecond."""
    bounds.looked("d", now, seconds, everywhere=True)
    bounds.took("d", [(5, 1)])
    bounds.looked("d", now, 0.001, everywhere=False)


def test_a_slow_walk_is_taken_more_rarely() -> None:
    bounds = Bounds()
    for now in range(20):
        walk(bounds, now, 0.027)
    assert bounds.ranges("d", 19 + 0.49) is not None
    assert bounds.ranges("d", 19 + 0.51) is None


@pytest.mark.parametrize("seconds", [0.501, 300.0])
def test_however_slow_walks_are_nothing_is_hidden_for_longer_than_a_second(seconds: float) -> None:
    """Three looks may be under way when a server is frozen, or a checkpoint may slow them down."""
    bounds = Bounds()
    for now in range(3):
        walk(bounds, now, seconds)
    assert bounds.ranges("d", 2 + 0.99) is not None
    assert bounds.ranges("d", 2 + PAUSE_MAX_SECONDS) is None
    bounds.emptied("d")
    bounds.resume("d", 60.0)
    assert bounds.ranges("d", 60 + 0.99) is not None
    assert bounds.ranges("d", 60 + PAUSE_MAX_SECONDS) is None


@pytest.mark.parametrize("slow", [(2,), (1, 2), (0, 1, 3), (0, 2, 3, 5, 6)], ids=str)
def test_a_walk_that_is_slow_by_chance_is_taken_as_often_as_before(slow: tuple[int, ...]) -> None:
    """On a busy machine some looks are slow, which made due work late by up to 0.4 s."""
    bounds = Bounds()
    for now in range(slow[-1] + 1):
        walk(bounds, now, 0.5 if now in slow else 0.001)
    assert bounds.ranges("d", slow[-1] + FORGET_SECONDS) is None


def test_after_one_fast_walk_it_is_taken_as_often_as_before() -> None:
    bounds = Bounds()
    for now in range(20):
        walk(bounds, now, 0.501)
    walk(bounds, 30.0, 0.001)
    assert bounds.ranges("d", 30.0 + FORGET_SECONDS) is None


def test_returned_work_is_looked_for_as_soon_as_a_walk_is_due() -> None:
    bounds = Bounds()
    walk(bounds, 0.0, 0.001)
    assert bounds.ranges("d", 0.01) is not None
    bounds.returned("d")
    assert bounds.ranges("d", 0.01) is None
    for now in range(20):
        walk(bounds, now, 0.501)
    bounds.returned("d")
    assert bounds.ranges("d", 19 + 0.99) is not None, "a slow walk costs a twentieth at most"
    assert bounds.ranges("d", 19 + PAUSE_MAX_SECONDS) is None


def test_new_work_is_looked_for_where_work_ended_until_some_comes_back() -> None:
    bounds = Bounds()
    bounds.looked("d", 0.0, 0.0, everywhere=True)
    bounds.took("d", [(5, 9)])
    before = bounds.ranges("d", 0.01)
    bounds.emptied("d")
    assert bounds.ranges("d", 0.01) is None
    bounds.resume("d", 60.0)
    assert bounds.ranges("d", 60.01) == before
    assert bounds.ranges("d", 61.0) is None, "and everywhere a moment later"
    bounds.emptied("d")
    bounds.forget("d")
    bounds.resume("d", 70.0)
    assert bounds.ranges("d", 70.01) is None


def test_new_work_is_looked_for_where_the_last_look_everywhere_ended() -> None:
    """It found one that had come back; others may be waiting behind that one."""
    bounds = Bounds()
    walk(bounds, 0.0, 0.001)
    bounds.took("d", [(5, 9)])
    bounds.emptied("d")
    bounds.looked("d", 1.0, 0.001, everywhere=True)
    bounds.took("d", [(5, 3)])
    bounds.resume("d", 1.0)
    found = bounds.ranges("d", 1.01)
    assert found is not None
    assert any(low <= (5, 4) < high for low, high in ranges_of(found))


def test_a_claim_that_was_under_way_sets_no_bounds_above_what_came_back_meanwhile() -> None:
    bounds = Bounds()
    walk(bounds, 0.0, 0.001)
    bounds.forget("d")
    bounds.took("d", [(5, 9)])
    assert bounds.ranges("d", 0.01) is None


def test_a_burst_after_a_pause_has_no_more_slow_walks_than_steady_work() -> None:
    """Beside a held snapshot, where they are slow, they would be a part of each burst."""
    bounds = Bounds()
    for now in range(20):
        walk(bounds, now, 0.501)
    bounds.emptied("d")
    bounds.resume("d", 60.0)
    assert bounds.ranges("d", 60.0 + 0.99) is not None
    assert bounds.ranges("d", 60.0 + PAUSE_MAX_SECONDS) is None
    bounds.looked("d", 80.0, 0.501, everywhere=True)
    bounds.took("d", [(5, 1)])
    bounds.emptied("d")
    bounds.resume("d", 100.0)
    assert bounds.ranges("d", 100.0) is not None
    bounds.returned("d")
    assert bounds.ranges("d", 100.0) is None, "what this process returned is looked for at once"
