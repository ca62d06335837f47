"""Receipts, one row for many outcomes: reads and actions know them, and none is a second."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import RawCursor

from commandbus import CommandStatus, SendRequest
from commandbus.domain.failure import Failure, FailureKind
from commandbus.domain.outcome import Outcome, Rejected, Succeeded
from commandbus.engines.postgres import location
from commandbus.engines.postgres.receipts import MEMBERS_MIN, RAN_END, SPAN, fold
from commandbus.engines.postgres.statements import queries
from commandbus.errors import InvalidOperationError
from commandbus.store.records import ClaimRequest, Settlement
from commandbus.store.settling import OutcomeRow
from commandbus.testing import Configuration, Harness
from commandbus.testing.harness import DOMAIN
from commandbus.testing.waiting import eventually
from tests.pgmq.database import pgmq_configuration
from tests.postgres.database import postgres_configuration
from tests.support.extent import sample

MANY = 3 * MEMBERS_MIN
HOUR = 3_600.0
KEEP = {"COMPLETED": HOUR}
REFUSED = Rejected(Failure(FailureKind.BUSINESS_RULE, "NO", "not today"))
BLOCKED = (
    "select count(*) from pg_stat_activity where datname = current_database()"
    " and wait_event_type = 'Lock' and application_name like 'commandbus%%'"
)

Settlements = list[Settlement]

TRANSPORTS = [
    pytest.param(postgres_configuration, marks=pytest.mark.postgres, id="postgres"),
    pytest.param(pgmq_configuration, marks=[pytest.mark.postgres, pytest.mark.pgmq], id="pgmq"),
]


@pytest.fixture(params=TRANSPORTS)
def configuration(request: pytest.FixtureRequest) -> Configuration:
    configuration: Configuration = request.param()
    return configuration


@pytest.fixture
def bus(configuration: Configuration) -> Iterator[Harness]:
    harness = configuration.open("threads")
    yield harness
    harness.close()


def sql(bus: Harness, query: str) -> list[Any]:
    with psycopg.connect(bus.configuration.url, autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


def shapes(bus: Harness) -> tuple[int, int, int]:
    """How many receipts there are, how many commands are in them, and how many outcomes are rows."""
    (found,) = sql(
        bus,
        "select (select count(*) from commandbus.receipt),"
        " (select coalesce(sum(members), 0) from commandbus.receipt),"
        " (select count(*) from commandbus.outcome)",
    )
    receipts, members, rows = map(int, found)
    return receipts, members, rows


def ended_twice(bus: Harness) -> list[Any]:
    return sql(bus, "select seq from commandbus.ended group by seq having count(*) > 1")


def claim(bus: Harness, count: int = MANY, seconds: float = 30.0) -> Settlements:
    """Claim commands under one lease, and say that they succeeded."""
    request = ClaimRequest((DOMAIN,), count, "w", seconds)
    claimed = bus.run(bus.store.claim(request)).claimed
    assert len(claimed) == count
    assert len({one.lease_id for one in claimed}) == 1
    return [Settlement(o.seq, o.lease_id, o.attempt, Succeeded(None), ran=7) for o in claimed]


def send(bus: Harness, count: int = MANY, **options: Any) -> list[UUID]:
    requests = [SendRequest(DOMAIN, "ship", {"n": n}, **options) for n in range(count)]
    return [one.command_id for one in bus.send_many(requests)]


def finish(bus: Harness, count: int = MANY, **options: Any) -> list[UUID]:
    ids = send(bus, count, **options)
    assert bus.run(bus.store.settle(claim(bus, count))).lost == ()
    return ids


def ending(settlements: Settlements, at: int, outcome: Outcome) -> Settlements:
    """The same, but for one that ended otherwise."""
    one = settlements[at]
    changed = Settlement(one.seq, one.lease_id, one.attempt, outcome, ran=one.ran)
    return [*settlements[:at], changed, *settlements[at + 1 :]]


def row(seq: int, ran: int = 1, result: str | None = None, attempts: int = 1) -> OutcomeRow:
    return OutcomeRow(seq, CommandStatus.COMPLETED, attempts, 0, 5, "w", ran, result)


def folded(rows: Sequence[OutcomeRow]) -> tuple[list[tuple[int, int, int]], list[int]]:
    found = fold(rows, {one.seq: 5 for one in rows})
    return [(r.first_seq, r.last_seq, r.members) for r in found.receipts], [r.seq for r in found.rows]


def test_numbers_that_are_near_each_other_share_a_receipt() -> None:
    first = 5 * SPAN
    near = [row(seq) for seq in range(first, first + 2 * MEMBERS_MIN, 2)]
    far = [row(seq) for seq in (3, first + SPAN, 10**9)]
    assert folded([*far, *near]) == (
        [(first, first - 2 + 2 * MEMBERS_MIN, MEMBERS_MIN)], [3, first + SPAN, 10**9]
    )  # fmt: skip
    wide = [row(seq) for seq in range(1, 3 * SPAN + 1)]
    assert folded(wide[::-1]) == (
        [(1, SPAN, SPAN), (SPAN + 1, 2 * SPAN, SPAN), (2 * SPAN + 1, 3 * SPAN, SPAN)], []
    )  # fmt: skip


def test_what_a_receipt_cannot_say_is_a_row() -> None:
    plain = [row(seq) for seq in range(1, MEMBERS_MIN + 1)]
    others = [row(90, RAN_END), row(91, -1), row(92, result="1"), row(93, attempts=2)]
    assert folded([*plain, *others]) == ([(1, MEMBERS_MIN, MEMBERS_MIN)], [90, 91, 92, 93])
    assert folded(plain[1:]) == ([], [one.seq for one in plain[1:]])
    (receipt,) = fold([*plain[:-1], row(MEMBERS_MIN + 1, 8)], {one.seq: 5 for one in plain} |
                      {MEMBERS_MIN + 1: 5}).receipts  # fmt: skip
    assert receipt.ran == "{" + "1," * (MEMBERS_MIN - 1) + "NULL,8}"


def test_the_commands_of_a_receipt_are_read_as_others(bus: Harness) -> None:
    ids = send(bus)
    settlements = claim(bus)
    refused = ending(settlements, 4, REFUSED)[4]
    settlements = ending(settlements, 3, Succeeded('{"x":1}'))
    bus.run(bus.store.settle([*settlements[:4], *settlements[5:]]))
    bus.run(bus.store.settle([refused]))
    assert shapes(bus) == (1, MANY - 2, 2)
    record = bus.get(ids[9])
    assert (record.status, record.attempts, record.worker) == (CommandStatus.COMPLETED, 1, "w")
    assert (record.result, record.error, record.reason) == (None, None, None)
    assert record.started_at is not None
    assert record.finished_at is not None
    assert (record.finished_at - record.started_at).microseconds == 7
    assert bus.kinds(ids[9]) == bus.kinds(ids[3]) == ["SENT", "RECEIVED", "COMPLETED"]
    assert bus.wait(ids[9]).command_id == ids[9]
    assert (bus.stats().completed, bus.stats().failed) == (MANY - 1, 1)
    completed = [*ids[:4], *ids[5:]]
    assert [one.command_id for one in bus.query(status="COMPLETED").items] == completed[::-1]
    assert [one.command_id for one in bus.query().items] == ids[::-1]
    assert bus.query(status="PENDING").items == []
    wanted = bus.query(status="COMPLETED", data={"n": "9"}).items
    assert [one.command_id for one in wanted] == [ids[9]]
    runs = bus.run(bus.store.recent_runs(5))
    assert [(run.status, run.attempts) for run in runs] == [("COMPLETED", 1)] * 5


def test_few_outcomes_are_rows(bus: Harness) -> None:
    finish(bus, MEMBERS_MIN - 1)
    assert shapes(bus) == (0, 0, MEMBERS_MIN - 1)


def test_pages_of_completed_commands_go_through_both_shapes(bus: Harness) -> None:
    ids: list[UUID] = []
    for _ in range(3):
        ids += send(bus, 2 * MEMBERS_MIN)
        # Every other one in a receipt, and between them some rows.
        settlements = claim(bus, 2 * MEMBERS_MIN)
        bus.run(bus.store.settle(settlements[::2]))
        assert len(settlements[1::2]) == MEMBERS_MIN
        for one in settlements[1::2]:
            bus.run(bus.store.settle([one]))
    assert shapes(bus) == (3, 3 * MEMBERS_MIN, 3 * MEMBERS_MIN)
    for limit in (1, 7, 50, 200):
        found: list[UUID] = []
        after = None
        while True:
            page = bus.query(status="COMPLETED", limit=limit, after=after)
            found += [one.command_id for one in page.items]
            after = page.next
            if after is None:
                break
        assert found == ids[::-1], limit
    runs = [run.due_at for run in bus.run(bus.store.recent_runs(1000))]
    assert len(runs) == 6 * MEMBERS_MIN
    assert runs == sorted(runs, reverse=True)
    wanted = bus.query(status="COMPLETED", data={"n": "1"}, limit=1)
    assert [one.command_id for one in wanted.items] == [ids[4 * MEMBERS_MIN + 1]]


def test_the_widest_receipt_is_found_from_both_of_its_ends(bus: Harness) -> None:
    ids = finish(bus, SPAN)
    assert shapes(bus) == (1, SPAN, 0)
    for one in (ids[0], ids[-1]):
        assert bus.get(one).status is CommandStatus.COMPLETED
    ((first, last),) = sql(bus, "select first_seq, last_seq from commandbus.receipt")
    assert last - first == SPAN - 1
    for seq, beside in ((first, first - 1), (last, last + 1)):
        for number, there in ((seq, 1), (beside, 0)):
            for look in (f"receipt_of({number})", f"ended_between({number}, {number})"):
                assert sql(bus, f"select count(*) from commandbus.{look}") == [(there,)], look
    assert sql(bus, f"select commandbus.ended_floor({first + 1}, 1)") == [(first,)]
    assert sql(bus, f"select commandbus.ended_ceiling({last - 1}, 1)") == [(last,)]
    bus.advance(2 * HOUR)
    cutoffs = {"COMPLETED": bus.run(bus.store.now()) - int(HOUR * 1e6)}
    assert bus.run(bus.store.prune(cutoffs, last - 1, 10)).gone == 1
    assert bus.find(ids[-1]) is None
    assert bus.find(ids[-2]) is not None
    assert shapes(bus) == (1, SPAN - 1, 0)


def test_a_settle_whose_commit_is_unknown_can_be_repeated(bus: Harness) -> None:
    send(bus)
    settlements = claim(bus)
    for batch in (settlements[:MEMBERS_MIN], settlements, settlements):
        assert bus.run(bus.store.settle(batch)).lost == ()
    assert shapes(bus) == (2, MANY, 0)
    assert ended_twice(bus) == []
    assert bus.stats().completed == MANY
    # What this lease has recorded as a success stays one, and is nobody else's.
    stranger = [Settlement(s.seq, s.lease_id + 1, s.attempt, s.outcome) for s in settlements]
    assert len(bus.run(bus.store.settle(stranger)).lost) == MANY


def test_a_worker_whose_lease_has_ended_writes_no_receipt(bus: Harness) -> None:
    ids = send(bus)
    stale = claim(bus)
    bus.advance(60)
    assert len(bus.run(bus.store.settle(stale)).lost) == MANY
    assert bus.receive(bus.worker(name="other"))
    assert len(bus.run(bus.store.settle(stale)).lost) == MANY
    assert shapes(bus) == (0, 0, 0)
    assert all(bus.get(i).status is not CommandStatus.COMPLETED for i in ids)


def blocked(lease_id: int, change: str, *settles: tuple[Harness, Settlements]) -> list[Any]:
    """Settle while another transaction has the lease, and does something with it in the end."""
    url = settles[0][0].configuration.url
    with psycopg.connect(url) as other, psycopg.connect(url, autocommit=True) as looker:
        held = f"select from commandbus.lease where lease_id = {lease_id} for update"
        other.execute(held.encode())
        running = [settling(bus, batch) for bus, batch in settles]
        eventually(lambda: looker.execute(BLOCKED).fetchone() == (len(settles),))
        other.execute(change.format(lease_id).encode())
        other.commit()
        return [one.result(20) for one in running]


def settling(bus: Harness, batch: Settlements) -> Future[Any]:
    return bus.spawn(lambda: bus.run(bus.store.settle(batch)))


@pytest.mark.parametrize(
    "change",
    [
        "delete from commandbus.lease where lease_id = {}",
        "update commandbus.lease set until = 1 where lease_id = {}",
        "update commandbus.lease set version = version + 1, seqs = seqs[:1] where lease_id = {}",
    ],
    ids=["rescued", "expired", "settled"],
)
def test_a_settle_that_waits_for_its_lease_sees_what_became_of_it(bus: Harness, change: str) -> None:
    send(bus)
    settlements = claim(bus)
    (report,) = blocked(settlements[0].lease_id, change, (bus, settlements))
    kept = 1 if "seqs[:1]" in change else 0
    assert len(report.lost) == MANY - kept
    assert shapes(bus) == (0, 0, kept)


def test_two_settles_of_one_lease_at_once_record_each_command_once(
    bus: Harness, configuration: Configuration
) -> None:
    """The second one is that of a process that does not remember the lease."""
    send(bus)
    settlements = claim(bus)
    twin = configuration.open("threads")
    try:
        both = (bus, settlements), (twin, settlements)
        reports = blocked(settlements[0].lease_id, "select {}", *both)
    finally:
        twin.close()
    assert [report.lost for report in reports] == [(), ()]
    assert ended_twice(bus) == []
    assert sum(shapes(bus)[1:]) == MANY
    assert bus.stats().completed == MANY


def test_a_rescue_takes_nothing_back_that_a_settle_ends(bus: Harness) -> None:
    """The lease expires while the settle has it: whichever has taken the lease decides."""
    send(bus)
    settlements = claim(bus, seconds=2.0)
    url = bus.configuration.url
    expired = "select until < commandbus.now_us() from commandbus.lease"
    with psycopg.connect(url) as other, psycopg.connect(url, autocommit=True) as looker:
        # Held up after it has taken the lease, by a receipt that is about to have the same key.
        other.execute(
            "insert into commandbus.receipt (first_seq, last_seq, lease_id, finished_at, members,"
            " worker, ran) values (%s, %s, 0, 0, 1, '', '{1}')",
            (settlements[0].seq, settlements[-1].seq),
        )
        running = settling(bus, settlements)
        eventually(lambda: looker.execute(BLOCKED).fetchone() == (1,))
        eventually(lambda: looker.execute(expired).fetchone() == (True,))
        assert bus.receive(bus.worker(name="other")) == []
        other.rollback()
        assert running.result(20).lost == ()
    assert bus.receive(bus.worker(name="other")) == []
    assert shapes(bus) == (1, MANY, 0)
    assert bus.stats().completed == MANY


def test_operators_cannot_act_on_what_completed(bus: Harness) -> None:
    ids = finish(bus)
    for refused in (bus.cancel, bus.operator_retry, bus.operator_cancel, bus.operator_complete):
        with pytest.raises(InvalidOperationError):
            refused(ids[5])
    with pytest.raises(InvalidOperationError):
        bus.call(bus.bus.reprioritise, ids[5], "high")
    assert shapes(bus) == (1, MANY, 0)


def test_a_second_outcome_without_a_lease_is_refused(bus: Harness) -> None:
    finish(bus)
    with pytest.raises(psycopg.errors.UniqueViolation, match="has an outcome already"):
        sql(bus, "select commandbus.refuse_ended((select max(seq) from commandbus.command))")


def test_a_place_that_another_program_gives_an_ended_command_is_dropped(bus: Harness) -> None:
    finish(bus)
    sql(
        bus,
        "insert into commandbus.queue (domain, priority, seq, available_at)"
        " select domain, priority, seq, 0 from commandbus.command",
    )
    assert bus.receive(bus.worker()) == []
    assert shapes(bus) == (1, MANY, 0)


def test_a_claim_drops_only_those_of_its_commands_that_have_ended(bus: Harness) -> None:
    finish(bus)
    fresh = send(bus, 2, priority="high")  # claims have no bound yet in this priority
    sql(
        bus,
        "insert into commandbus.queue (domain, priority, seq, available_at) select domain,"
        " (select priority from commandbus.command order by seq desc limit 1), seq, 0"
        " from commandbus.command order by seq limit 1",
    )
    claimed = bus.run(bus.store.claim(ClaimRequest((DOMAIN,), 10, "w", 30.0))).claimed
    assert {one.command_id for one in claimed} == set(fresh)
    assert sql(bus, "select count(*) from commandbus.queue") == [(0,)]


def test_what_was_kept_long_enough_leaves_its_receipt(bus: Harness) -> None:
    old = finish(bus)
    requests = [SendRequest(DOMAIN, "ship", delay=d) for d in (10 * HOUR, *[0] * MANY)]
    batch = bus.call(bus.bus.create_batch, requests)
    bus.run(bus.store.settle(claim(bus)))
    bus.advance(2 * HOUR)
    new = finish(bus)
    assert shapes(bus)[0] == 3
    assert bus.call(bus.bus.prune, KEEP, preview=True).gone == MANY
    assert shapes(bus)[0] == 3
    assert bus.call(bus.bus.prune, KEEP).gone == MANY
    assert shapes(bus) == (2, 2 * MANY, 0)
    assert [bus.find(one) for one in old] == [None] * MANY
    assert all(bus.find(one) is not None for one in new)
    members = bus.call(bus.bus.list_batch_commands, batch.batch_id, limit=1000).items
    assert len(members) == MANY + 1
    assert len(bus.query(batch_id=batch.batch_id, status="COMPLETED", limit=1000).items) == MANY


def test_retention_goes_on_in_the_middle_of_a_receipt(bus: Harness) -> None:
    finish(bus)
    bus.advance(2 * HOUR)
    finish(bus, 2)
    now = bus.run(bus.store.now())
    cutoffs = {"COMPLETED": now - int(HOUR * 1e6)}
    first = bus.run(bus.store.prune(cutoffs, 0, 10))
    assert (first.gone, shapes(bus)) == (10, (1, MANY - 10, 2))
    second = bus.run(bus.store.prune(cutoffs, first.last, MANY - 10))
    assert (second.gone, shapes(bus)) == (MANY - 10, (0, 0, 2))
    last = bus.run(bus.store.prune(cutoffs, second.last, 10))
    assert (last.gone, last.last) == (0, None)


def test_erasure_of_one_command_leaves_the_others_in_their_receipt(bus: Harness) -> None:
    ids = finish(bus)
    before = bus.get(ids[5])
    erased = bus.call(bus.bus.acting("ann").erase, data={"n": "5"}, reason="asked")
    assert erased.erased == 1
    after = bus.get(ids[5])
    assert after.data == {"erased": True}
    for kept in ("status", "started_at", "finished_at", "attempts", "worker", "result"):
        assert getattr(after, kept) == getattr(before, kept)
    assert shapes(bus) == (1, MANY - 1, 1)
    assert bus.get(ids[6]).data == {"n": 6}
    assert [one.command_id for one in bus.query(status="COMPLETED").items] == ids[::-1]


def test_erasure_and_retention_of_one_receipt_wait_for_each_other(bus: Harness) -> None:
    ids = finish(bus)
    bus.advance(2 * HOUR)
    url = bus.configuration.url
    with psycopg.connect(url) as other, psycopg.connect(url, autocommit=True) as looker:
        other.execute(
            "insert into commandbus.outcome select * from commandbus.take_receipts(array(select seq"
            " from commandbus.command order by seq limit 1))"
        )
        running = bus.spawn(lambda: bus.bus.prune(KEEP))
        eventually(lambda: looker.execute(BLOCKED).fetchone() == (1,))
        other.commit()
        running.result(20)
    assert [one for one in ids if bus.find(one) is not None] == ids[:1]
    assert shapes(bus) == (0, 0, 1)
    assert bus.call(bus.bus.prune, KEEP).gone == 1
    assert shapes(bus) == (0, 0, 0)


def test_purging_a_domain_leaves_the_receipts_of_others(bus: Harness) -> None:
    finish(bus)
    bus.send_many([SendRequest("other", "ship") for _ in range(MANY)])
    claimed = bus.run(bus.store.claim(ClaimRequest(("other",), MANY, "w", 30.0))).claimed
    bus.run(bus.store.settle([Settlement(c.seq, c.lease_id, 1, Succeeded(None)) for c in claimed]))
    assert shapes(bus)[0] == 2
    bus.run(bus.store.purge(DOMAIN))
    assert shapes(bus) == (1, MANY, 0)
    assert len(bus.query(status="COMPLETED").items) == MANY


ENDED = sample(200_000, 1_000_000)
BY_ID = "where c.command_id = $1::uuid and ($2::text is null or c.domain = $2::text) order by c.seq"


def fill(connection: psycopg.Connection[Any]) -> None:
    """Ended commands in receipts of 500, and one in 1,000 as a row."""
    connection.execute("set statement_timeout = 0")
    connection.execute(
        "insert into commandbus.command (seq, command_id, domain, command_type, data, correlation_id,"
        " priority, created_at, due_at) select n, lpad(to_hex(n), 32, '0')::uuid, 'd1', 't', '{}',"
        f" lpad(to_hex(n), 32, '0')::uuid, 5, 0, 0 from generate_series(1, {ENDED}) n"
    )
    connection.execute(
        "insert into commandbus.receipt (first_seq, last_seq, lease_id, finished_at, members, worker,"
        " ran) select f, f + 499, f, f, 500 - f % 1000 / 501, 'w',"
        " array(select case when (f + i) % 1000 > 0 then i end"
        f" from generate_series(0, 499) i) from generate_series(1, {ENDED}, 500) f"
    )
    connection.execute(
        "insert into commandbus.outcome (seq, status, attempts, crashes, finished_at)"
        f" select n, 'COMPLETED', 2, 0, n from generate_series(1000, {ENDED}, 1000) n"
    )


READS: dict[str, tuple[str, list[Any], int]] = {
    "by id": ("records", [UUID(int=ENDED * 777_777 // 1_000_000), None], 30),
    "endings": ("endings", [f"{{{UUID(int=5)},{UUID(int=ENDED * 777 // 1_000)}}}", "{d1,d1}"], 30),
    "repeated settle": ("recorded_leases", ["{" + ",".join(map(str, range(5000, 5500))) + "}"], 6_000),
    "newest": ("recent_runs", [100], 1_000),
    "retention": ("prune", [ENDED // 2 + 250, 500, '{"COMPLETED": 1}', "{ERASED}"], 5_000),
    "floor": ("ended_floor", [ENDED * 9 // 10, 200], 30),
}


@pytest.mark.postgres
@pytest.mark.timeout(300)
def test_reads_of_outcomes_look_at_little_of_many() -> None:
    """With the statistics of an empty table, and with fresh ones. Counted in pages of the server."""
    place = location.parse(postgres_configuration().url)
    with psycopg.connect(place.conninfo, autocommit=True, cursor_factory=RawCursor) as connection:
        connection.execute("analyze")
        fill(connection)
        for statistics in ("stale", "fresh"):
            for name, (query, params, most) in READS.items():
                text = getattr(queries("commandbus"), query)
                text = f"{text} {BY_ID}" if name == "by id" else text
                explain = f"explain (analyze, buffers, format json) {text}"
                found = connection.execute(explain.encode(), params, prepare=True).fetchone()
                assert found is not None
                top = found[0][0]["Plan"]
                pages = top["Shared Hit Blocks"] + top["Shared Read Blocks"]
                assert top["Actual Rows"] >= 1, name
                assert pages <= most, f"{name}, {statistics} statistics: {pages} pages"
            connection.execute("analyze")
