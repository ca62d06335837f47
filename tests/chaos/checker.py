"""Checks the promises over the histories of all processes and what the store shows in the end.

Each check is a function from a case to violations. It trusts no process to have written down its last
moments: one that was killed may have claimed or settled without a line. So it never concludes from a
missing line, only from lines that contradict each other, the final records, or the audit.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import inf

from tests.chaos import conduct
from tests.chaos.case import Case, Event, Final, Trace, Violation
from tests.chaos.kinds import BATCH_DONE, GATED, KILLERS, POISON, TICK
from tests.chaos.replay import the_audit_tells_the_state, trail_of
from tests.chaos.timeliness import (
    NOT_BEGUN,
    NOT_BLAMED,
    NOT_RECORDED,
    redelivery_is_prompt,
    stops_are_prompt,
    stops_give_back_what_they_hold,
)
from tests.chaos.wholes import (
    CLOCK_SLACK,
    a_key_has_one_live_command,
    batches_count_and_complete_once,
    transactions_take_effect_once,
)

CRASHES_MAX = 3
ATTEMPTS_MAX = 3
STOPS_MAX = 20
RETURNS_MAX = 3
"""How often workers that go on working may give a command back."""
INTERRUPTED = "the worker stopped"
NEEDED = {
    INTERRUPTED, NOT_BEGUN, NOT_BLAMED, NOT_RECORDED, "the worker is stopping", "released by hand",
    "its lease may be gone",
}  # fmt: skip
"""Reasons to give a command back of which each has a fault or a stop behind it."""
RECORDED = "Its worker process"
"""In the error of a crash that a flight recorder told of."""
DYING_SECONDS = 0.5
"""A lease of a killed process may end before the kernel has ended the process: then it lives, as far as
others can see, and its recorder says nothing."""
DEATHS_MIN = 3
SHARED_MAX = 3.0
"""Stays with more patience than this share the machine with the tests of a whole run."""
LATE_SECONDS = 1.5
"""A send that commits after a later one of its priority was claimed has come too late for its place: on
PostgreSQL others may go before it for about a second."""
LEAKS_MAX = 20
ENDED = {"COMPLETED", "FAILED", "CANCELED", "IN_TROUBLESHOOTING_QUEUE"}

Check = Callable[[Case], Iterator[Violation]]


def check(case: Case) -> list[Violation]:
    """Every violation of every promise."""
    return [violation for one in CHECKS for violation in one(case)]


def nothing_is_lost(case: Case) -> Iterator[Violation]:
    for command_id, answers in case.answers.items():
        known = any(answer["event"] in ("send_ok", "send_duplicate") for answer in answers)
        if known and case.final(command_id) is None:
            yield Violation("P1", "an acknowledged command is gone", case.story(command_id))
    for command_id, finals in case.finals.items():
        if finals[0].status not in ENDED:
            what = "a command has not ended although all faults are over"
            yield Violation("P1", what, case.story(command_id))
        if finals[0].status == "COMPLETED" and not case.runs[command_id]:
            what = "a command is COMPLETED, but no handler ever began it"
            yield Violation("P1", what, case.story(command_id))
        if len({final.sequence for final in finals}) < len(finals):
            what = "a command has more than one outcome"
            yield Violation("P1", what, case.story(command_id))


def nothing_comes_from_nowhere(case: Case) -> Iterator[Violation]:
    for command_id in case.finals.keys() | case.runs.keys():
        final = case.final(command_id)
        if final is not None and final.type == BATCH_DONE and final.batch in case.batches:
            continue
        if final is not None and final.type == TICK:
            continue  # `occurrences_are_sent_once` knows which there must be
        if command_id not in case.invoked:
            yield Violation("P1", "a command that nobody sent", case.story(command_id))


def bulk_is_all_or_nothing(case: Case) -> Iterator[Violation]:
    for group in case.groups:
        there = [command_id for command_id in group if case.final(command_id)]
        if there and len(there) < len(group):
            absent = next(command_id for command_id in group if command_id not in there)
            what = f"{len(there)} of {len(group)} commands of one bulk send exist"
            yield Violation("P2", what, (*case.story(there[0]), *case.story(absent)))
    for command_id, answers in case.answers.items():
        if all(answer["event"] == "send_failed" for answer in answers) and case.final(command_id):
            yield Violation("P2", "a send that failed took effect", case.story(command_id))


def repeated_sends_make_one_command(case: Case) -> Iterator[Violation]:
    for command_id, finals in case.finals.items():
        count = len({final.sequence for final in finals})
        if count > 1:
            yield Violation("P3", f"one id, {count} commands", case.story(command_id))
    for command_id, answers in case.answers.items():
        if sum(answer["event"] == "send_ok" for answer in answers) > 1:
            what = "a repeated send was not told that its command exists"
            yield Violation("P3", what, case.story(command_id, "send_"))


def runs_follow_claims(case: Case) -> Iterator[Violation]:
    """A claim is written down before its handlers begin, by the same process."""
    for command_id, runs in case.runs.items():
        given = {(claim.pid, claim.token) for claim in case.claims[command_id]}
        for run in runs:
            if (run["pid"], run["token"]) not in given:
                what = "a handler was begun under a lease that its process never got"
                yield Violation("P6", what, case.story(command_id, "handled", "claimed"))


def deliveries_are_bounded(case: Case) -> Iterator[Violation]:
    for command_id, runs in case.runs.items():
        for token, count in Counter(run["token"] for run in runs).items():
            if count > 1:
                what = f"a handler was begun {count} times under token {token}"
                yield Violation("P5", what, case.story(command_id, "handled", "claimed"))
        final = case.final(command_id)
        if final is None:
            continue
        # A handler that was interrupted by a stop began, and its attempt was given back.
        stopped = _stops(final)
        forgotten = sum(case.forgotten(claim) for claim in case.claims[command_id])
        lives = 1 + case.retried(command_id)
        bound = (final.max_attempts + CRASHES_MAX) * lives + stopped + forgotten
        if len(runs) > bound:
            what = f"{len(runs)} deliveries, more than {bound}"
            yield Violation("P5", what, case.story(command_id, "handled"))


def nothing_is_passed_around(case: Case) -> Iterator[Violation]:
    """A worker that stops or lost its lease gives back what it had not begun. Workers that go on may
    return a command for other reasons, but not again and again: that is a delivery without a run."""
    for final, *_ in case.finals.values():
        returns = [t for t in final.trail if t.kind == "RELEASED" and _reason(t) not in NEEDED]
        if len(returns) > RETURNS_MAX:
            what = f"given back {len(returns)} times by workers that went on: {_reason(returns[0])}"
            yield Violation("P5", what, trail_of(final))


def _stops(final: Final) -> int:
    """How often its handler was interrupted by the stop of its worker, or ran when it died, without a
    crash being counted."""
    ended = (INTERRUPTED, NOT_RECORDED, NOT_BLAMED)
    return sum(t.kind == "RELEASED" and _reason(t) in ended for t in final.trail)


def crashes_are_of_what_ran(case: Case) -> Iterator[Violation]:
    """P23: where a recorder says what ran, a death counts a crash for no more commands than ran, also
    when the leases of a killed worker end before the recorder is acted on."""
    if case.terms is None or not case.terms.recorders:
        return
    killed = {f["victim"]: f["at"] for f in case.faults if f["fault"] == "kill worker"}
    counted: dict[str, list[Final]] = defaultdict(list)
    for final, *_ in case.finals.values():
        for trace in final.trail:
            if trace.kind != "WORKER_LOST":
                continue
            worker = str(trace.details.get("worker"))
            died = next((at for pid, at in killed.items() if f"-{pid}-" in worker), inf)
            if RECORDED in str(trace.details.get("error")) or trace.at > died + DYING_SECONDS:
                counted[worker].append(final)
    for worker, finals in counted.items():
        if len(finals) > case.terms.concurrency:
            what = f"{len(finals)} crashes by the death of {worker}: only {case.terms.concurrency} ran"
            yield Violation("P23", what, trail_of(finals[0]))


def recorders_are_read(case: Case) -> Iterator[Violation]:
    """P23: of several deaths, not all wait for their leases although recorders are there. The short
    stays of every test run share the machine with other tests, and leave that out."""
    if case.terms is not None and (case.terms.redelivery > SHARED_MAX or not case.terms.recorders):
        return
    victims = {fault["victim"] for fault in case.faults if fault["fault"] == "kill worker"}
    by_lease: dict[str, Final] = {}
    for final, *_ in case.finals.values():
        for trace in final.trail:
            lost = trace.kind == "WORKER_LOST"
            if _reason(trace) in (NOT_BEGUN, NOT_RECORDED, NOT_BLAMED) or (
                lost and RECORDED in str(trace.details.get("error"))
            ):
                return
            if lost and any(f"-{pid}-" in str(trace.details.get("worker")) for pid in victims):
                by_lease[str(trace.details.get("worker"))] = final
    if len(by_lease) >= DEATHS_MIN:
        worker, final = next(iter(by_lease.items()))
        what = f"{len(by_lease)} dead workers were noticed by the end of their leases, such as {worker}"
        yield Violation("P23", what, trail_of(final))


def _reason(trace: Trace) -> str:
    reason = str(trace.details.get("reason"))
    return NOT_BLAMED if reason.startswith(NOT_BLAMED) else reason  # the cause of the death follows it


def one_lease_at_a_time(case: Case) -> Iterator[Violation]:
    for command_id, claims in case.claims.items():
        for token, count in Counter(claim.token for claim in claims).items():
            if count > 1:
                what = f"token {token} was given out {count} times"
                yield Violation("P6", what, case.story(command_id, "claimed"))
    for command_id in case.settles:
        claims, accepted = case.claims[command_id], case.accepted(command_id)
        owners = {claim.token: claim.pid for claim in claims}
        for settle in accepted:
            if owners.get(settle.token, settle.pid) != settle.pid:
                what = "a process settled under a token that another one was given"
                yield Violation("P6", what, case.story(command_id, "claimed", "settled"))
            newer = [
                claim
                for claim in claims
                if claim.token > settle.token and claim.at < settle.began and not case.forgotten(claim)
            ]
            if newer:
                what = "a stale worker's outcome was accepted"
                yield Violation("P6", what, (str(newer[0]), str(settle)))
        final = {settle.token for settle in accepted if settle.facts["final"]}
        if len(final) > 1 + case.retried(command_id):
            what = f"outcomes were accepted under {len(final)} tokens"
            yield Violation("P6", what, case.story(command_id, "settled"))
        yield from _taken_back_and_settled(case, command_id)


def _taken_back_and_settled(case: Case, command_id: str) -> Iterator[Violation]:
    final = case.final(command_id)
    if final is None:
        return
    taken_back = {t.details.get("lease_id") for t in final.trail if t.kind == "WORKER_LOST"}
    for settle in case.accepted(command_id):
        if settle.token in taken_back:
            what = "an outcome was accepted under a lease that was taken back"
            yield Violation("P6", what, (str(settle), *trail_of(final)))


def attempts_are_bounded(case: Case) -> Iterator[Violation]:
    for command_id, (final, *_) in case.finals.items():
        if final.crashes > CRASHES_MAX or final.attempts > final.max_attempts + CRASHES_MAX:
            what = f"{final.attempts} attempts with {final.crashes} crashes"
            yield Violation("P7", what, trail_of(final))
        sent = case.invoked.get(command_id)
        killed = final.status == "IN_TROUBLESHOOTING_QUEUE" and final.reason == "WORKER_LOST"
        if sent and sent["type"] in KILLERS and not killed:
            what = f"a command that kills its workers ended as {final.status}"
            yield Violation("P7", what, case.story(command_id))
        too_soon = final.attempts - final.crashes < final.max_attempts
        if final.reason == "WORKER_LOST" and final.crashes < CRASHES_MAX:
            what = f"parked for its crashes after {final.crashes}"
            yield Violation("P7", what, trail_of(final))
        if final.reason == "EXHAUSTED" and too_soon:
            what = f"parked as exhausted after {final.attempts} attempts, {final.crashes} crashes"
            yield Violation("P7", what, trail_of(final))


def it_ends_as_its_handler_said(case: Case) -> Iterator[Violation]:
    for command_id, (final, *_) in case.finals.items():
        sent = case.invoked.get(command_id)
        if sent is None or final.status not in ENDED or final.reason == "WORKER_LOST":
            continue
        if final.status == "CANCELED":
            continue  # `operators_are_obeyed` knows whether that is right
        if final.reason == "NEVER_FINISHED" and _stops(final) >= STOPS_MAX:
            continue  # as often as that its worker was stopped before it could end
        if (final.status, final.reason) not in _expected(sent):
            what = f"a {sent['type']} command ended as {final.status} ({final.reason})"
            yield Violation("P8", what, (*case.story(command_id), *trail_of(final)))


def _expected(sent: Event) -> tuple[tuple[str, str | None], ...]:
    exhausted = ("IN_TROUBLESHOOTING_QUEUE", "EXHAUSTED")
    match sent["type"]:
        case "reject":
            return (("FAILED", None),)
        case "permanent":
            return (("IN_TROUBLESHOOTING_QUEUE", "PERMANENT"),)
        case poison if poison in POISON:
            return (exhausted,)
        case "flaky" | "transfer" if sent["data"]["failures"] >= ATTEMPTS_MAX:
            return (exhausted,)
        case "transfer" | "stepped":
            # Its connection may have been cut three times, of which each is a failed attempt.
            return ("COMPLETED", None), exhausted
    return (("COMPLETED", None),)


def errors_are_kept(case: Case) -> Iterator[Violation]:
    for final, *_ in case.finals.values():
        if final.status in ("FAILED", "IN_TROUBLESHOOTING_QUEUE") and not final.error:
            yield Violation("P8", f"{final.status} without an error", trail_of(final))


def reads_tell_what_is_stored(case: Case) -> Iterator[Violation]:
    """The product's own reads against the tables."""
    for lie in case.store.lies:
        yield Violation("P21", "a read tells something else than the tables", (lie,))


def sessions_are_clean(case: Case) -> Iterator[Violation]:
    for leak in case.leaks[:LEAKS_MAX]:
        what = "a handler found what another one had left in its session"
        yield Violation("P16", what, (str(leak["found"]), *case.story(leak["id"], "handled")))


def nothing_runs_early(case: Case) -> Iterator[Violation]:
    for command_id, runs in case.runs.items():
        sent = case.invoked.get(command_id)
        if sent and runs[0]["at"] < sent["at"] + sent["delay"] - CLOCK_SLACK:
            early = sent["at"] + sent["delay"] - runs[0]["at"]
            what = f"begun {early * 1_000:.0f} ms before it was due"
            yield Violation("P9", what, case.story(command_id, "handled", "send_"))
        final = case.final(command_id)
        # A worker that slept through its lease may begin late what it claimed before others failed.
        since = {(claim.pid, claim.token): claim.at for claim in case.claims[command_id]}
        for trace in final.trail if final else ():
            if trace.kind != "FAILED":
                continue
            due = trace.at + trace.details.get("retry_in", 0)
            for run in runs:
                if since.get((run["pid"], run["token"]), run["at"]) < trace.at:
                    continue
                if trace.at + CLOCK_SLACK < run["at"] < due - CLOCK_SLACK:
                    what = f"retried {(due - run['at']) * 1_000:.0f} ms before its backoff was over"
                    yield Violation("P9", what, case.story(command_id, "handled"))


def claims_follow_priority(case: Case) -> Iterator[Violation]:
    """Within a claim in order; and no claim takes something while something better waited throughout.

    Only first deliveries without delay count: what comes back or becomes due does so at a moment that
    no process writes down.
    """
    in_sequence = case.terms is None or case.terms.in_sequence
    for call in case.claim_calls:
        keys: dict[str, tuple[int, int]] = {}
        for facts in call["members"]:
            key = (facts["priority"], facts["seq"] if in_sequence else 0)
            before = keys.get(facts["domain"])
            if before is not None and key < before:
                what = f"one claim gave {before} before {key}"
                yield Violation("P10", what, case.story(facts["id"], "claimed"))
            keys[facts["domain"]] = key
    for domain in {sent["domain"] for sent in case.invoked.values()} if in_sequence else ():
        yield from _overtaken(case, domain)


def _overtaken(case: Case, domain: str) -> Iterator[Violation]:
    """Claims in order of their beginning, against a heap of what was waiting then."""
    waiting = sorted(_waiting_spans(case, domain))
    calls = [
        (call["began"], call["at"], max(keys))
        for call in case.claim_calls
        if (keys := [(m["priority"], m["seq"]) for m in call["members"] if m["domain"] == domain])
    ]
    heap: list[tuple[tuple[int, int], float, str]] = []
    position = 0
    for began, ended, worst in sorted(calls):
        while position < len(waiting) and waiting[position][0] < began:
            _, until, key, command_id = waiting[position]
            heappush(heap, (key, until, command_id))
            position += 1
        while heap and heap[0][1] <= began:
            heappop(heap)
        if heap and heap[0][0] < worst and heap[0][1] > ended and not _cut(case, began, ended):
            key, until, command_id = heappop(heap)
            what = f"{worst} was claimed from {began:.6f} to {ended:.6f} while {key} waited"
            yield Violation("P10", what, case.story(command_id, "send_", "claimed"))


def _cut(case: Case, began: float, ended: float) -> bool:
    """Whether a worker died meanwhile, or lost its connection, with a claim on its way. The server
    undoes such a claim when it cannot send the answer; until then its rows are locked, and claims of
    others pass them over."""
    return any(since <= ended and until >= began for since, until in case.cut_claims)


def _waiting_spans(case: Case, domain: str) -> Iterator[tuple[float, float, tuple[int, int], str]]:
    """From when to when a command surely waited in its place, its key, and its id."""
    newest = _newest_claimed(case, domain)
    for command_id, sent in case.invoked.items():
        answered = [a["at"] for a in case.answers[command_id] if a["event"] == "send_ok"]
        final, claims = case.final(command_id), case.claims[command_id]
        if sent["domain"] != domain or sent["delay"] or not answered or final is None or not claims:
            continue
        if sent["type"] in GATED:
            continue  # it also waits for others of its group, for a permit or a token
        first = claims[0]
        # An earlier claim may have died unwritten, or been given back: then nothing is sure.
        if first.facts["attempt"] != 1 or any(t.kind == "RELEASED" for t in final.trail):
            continue
        since = answered[0]
        if newest(final.priority, since) > final.sequence:
            since += LATE_SECONDS
        yield since, first.began, (final.priority, final.sequence), command_id


def _newest_claimed(case: Case, domain: str) -> Callable[[int, float], int]:
    """The highest sequence of a priority that any claim had been after by a moment."""
    moments: dict[int, list[float]] = defaultdict(list)
    highest: dict[int, list[int]] = defaultdict(list)
    for call in sorted(case.claim_calls, key=lambda call: float(call["began"])):
        for member in call["members"]:
            if member["domain"] == domain:
                so_far = highest[member["priority"]]
                moments[member["priority"]].append(call["began"])
                so_far.append(max(member["seq"], so_far[-1] if so_far else 0))

    def newest(priority: int, moment: float) -> int:
        position = bisect_right(moments[priority], moment)
        return highest[priority][position - 1] if position else 0

    return newest


CHECKS: tuple[Check, ...] = (
    nothing_is_lost,
    nothing_comes_from_nowhere,
    bulk_is_all_or_nothing,
    repeated_sends_make_one_command,
    transactions_take_effect_once,
    runs_follow_claims,
    deliveries_are_bounded,
    nothing_is_passed_around,
    one_lease_at_a_time,
    attempts_are_bounded,
    it_ends_as_its_handler_said,
    errors_are_kept,
    nothing_runs_early,
    claims_follow_priority,
    a_key_has_one_live_command,
    batches_count_and_complete_once,
    the_audit_tells_the_state,
    reads_tell_what_is_stored,
    sessions_are_clean,
    crashes_are_of_what_ran,
    recorders_are_read,
    redelivery_is_prompt,
    stops_are_prompt,
    stops_give_back_what_they_hold,
    *conduct.CHECKS,
)
