"""Promises with a number of seconds, measured to the start of a handler.

A stay keeps two processors busy with many processes, so lateness alone proves little: a command may
wait because nothing was free to run it. A redelivery therefore counts as late only with evidence that
a living worker could have run it: after its time was over, a worker claimed a command that stands
behind it, or a worker that no fault touched had a free slot all the while.

The time of a redelivery begins anew when the worker that took the command over dies, too, whether its
journal has the claim or not: the audit trail has each lease that was lost. It also begins anew after a
silence, in which no worker was alive to claim. A redelivery that a fault of the store fell into is not
counted. With that, storms of kills are judged by the same number as a single death.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tests.chaos.case import DEATHS, Case, Event, Final, Member, Terms, Violation

STOP_SECONDS = 1.0
"""P18: how long after its grace a stopping worker has ended, at the latest."""
AWAY_SECONDS = 5.0
"""The same while the store is away or does not answer."""
LOAD_SECONDS = 1.0
"""For a process that ends while others keep both processors busy, see `Terms.load`."""
START_SECONDS = 0.5
"""A busy process may take so long from a claim to the start of its handlers: what others claim
meanwhile overtakes nothing."""
SILENCE_SECONDS = 0.5
"""When nothing is claimed for so long although there is work, no worker lives."""
SHARE_LATE = 0.01
"""Numbers are promised for the 99th percentile."""
WORKER_FAULTS = {"kill worker", "freeze worker", "stop worker", "killed by a command"}
LASTS = {
    "outage": 75.0, "disk full": 5.0, "freeze line": 5.0, "freeze one": 5.0, "slow line": 2.0,
    "hold snapshot": 4.0, "freeze worker": 3.0, "connection storm": 3.0, "kill pooler": 3.0,
    "fail over": 5.0, "restart server": 3.0, "kill server": 3.0,
}  # fmt: skip
"""How long faults of the store last at most, with what follows from them; others a second."""
NOT_BEGUN = "its worker was lost before it began"
NOT_RECORDED = "its worker was lost before its outcome was recorded"
NOT_BLAMED = "its worker was lost, and nothing shows that it was the cause"


@dataclass(frozen=True)
class Redelivery:
    """A command of a dead worker, and when a handler began it again."""

    command_id: str
    died: float
    due: float
    """When its lease ended at the latest."""
    began: float
    evidence: str | None
    """Why it could have begun earlier, if it is late."""

    @property
    def late(self) -> float:
        return self.began - self.due


class Fleet:
    """What the workers could have done: claims in order, and slots that were free."""

    def __init__(self, case: Case, terms: Terms, *harmless: str) -> None:
        """`harmless` are faults that are none for what is judged."""
        self._terms = terms
        self._calls = sorted(case.claim_calls, key=lambda call: float(call["began"]))
        self._starts = [call["began"] for call in self._calls]
        self._faults: dict[int, list[float]] = defaultdict(list)
        for fault in case.faults:
            if fault["fault"] in WORKER_FAULTS and fault["victim"] is not None:
                self._faults[fault["victim"]].append(fault["at"])
        self._store_faults = [
            (fault["at"], fault["at"] + LASTS.get(fault["fault"], 1.0))
            for fault in case.faults
            if fault["fault"] not in {*WORKER_FAULTS, "kill sender", *harmless}
        ]
        self._freezes = [
            (fault["at"], fault["at"] + LASTS["freeze worker"])
            for fault in case.faults
            if fault["fault"] == "freeze worker" and terms.one_writer
        ]
        self._lives: dict[int, tuple[float, float]] = {}
        self._load: dict[int, list[tuple[float, int]]] = defaultdict(list)
        held: set[tuple[str, int]] = set()
        for event in case.events:
            first, _ = self._lives.get(event["pid"], (event["at"], 0.0))
            self._lives[event["pid"]] = first, event["at"]
            members = {(one["id"], one["token"]) for one in event.get("members", ())}
            if event["event"] == "claimed":
                held |= members
                self._load[event["pid"]].append((event["began"], len(members)))
            # A settle of unknown outcome is repeated, and its worker claims nothing more until then.
            elif event["event"] in ("settled", "refused"):
                self._load[event["pid"]].append((event["at"], -len(members & held)))
                held -= members

    def store_was_harmed(self, since: float, until: float) -> bool:
        return any(began <= until and ended >= since for began, ended in self._store_faults)

    def store_was_away(self, since: float, until: float) -> bool:
        """It was harmed, or a frozen worker may have kept all others from writing."""
        frozen = any(began <= until and ended >= since for began, ended in self._freezes)
        return frozen or self.store_was_harmed(since, until)

    def was_harmed(self, pid: int, since: float, until: float) -> bool:
        return any(since <= at <= until for at in self._faults.get(pid, ()))

    def overtaken(self, domain: str, key: tuple[int, int], due: float, until: float) -> str | None:
        """A claim that began before `until` and took something behind this key, in the same domain, for
        longer than a redelivery may take after the first such claim: before that, more urgent commands
        had their turn. A silence is a fleet without living workers; the time begins anew after it."""
        first, last = bisect_right(self._starts, due), bisect_left(self._starts, until)
        before, turn = due, None
        for call in self._calls[first:last]:
            began = float(call["began"])
            if began - before > SILENCE_SECONDS:
                turn = None
            before = began
            for member in call["members"]:
                behind = (member["priority"], member["seq"]) > key
                if member["domain"] != domain or not behind or member["attempt"] != 1:
                    continue
                turn = began if turn is None else turn
                if began > turn + self._terms.redelivery:
                    return f"{began:.6f} process {call['pid']} claimed {member['id']} behind it"
        return None

    def had_room(self, since: float, until: float) -> str | None:
        """A worker that no fault touched, and that had a free slot all the while."""
        for pid, changes in self._load.items():
            born, gone = self._lives[pid]
            if born > since or gone < until or self.was_harmed(pid, born, until):
                continue
            load, most = 0, 0
            for at, change in sorted(changes):
                load += change
                if since <= at <= until:
                    most = max(most, load)
                elif at < since:
                    most = load
            if most < self._terms.concurrency:
                return (
                    f"process {pid} held at most {most} of {self._terms.concurrency} from {since:.3f}"
                )
        return None


def redeliveries(case: Case, terms: Terms) -> Iterator[Redelivery]:
    """Of every command that died with its worker and runs again, from its last death before that."""
    deaths = {f["victim"]: f["at"] for f in case.faults if f["fault"] in DEATHS}
    fleet = Fleet(case, terms)
    for command_id, claims in case.claims.items():
        final = case.final(command_id)
        if final is None or not any(claim.pid in deaths for claim in claims):
            continue
        lost = _taken_back(final, claims)
        for claim in claims:
            died = deaths.get(claim.pid)
            if died is None or claim.token not in lost or not claim.at <= died:
                continue
            run = _next_run(case, command_id, died, claim.token)
            if run is None:
                continue
            began = run["at"]
            lost_again = any(lost[claim.token] < at <= began for at in lost.values())
            if lost_again or _meddled(case, fleet, claims, died, began):
                continue
            due = died + terms.lease
            evidence = None
            if began > due + terms.redelivery:
                key = (final.priority, final.sequence)
                taken = [again.began for again in claims if again.token == run["token"]]
                until = min(taken, default=began)
                until = began if began > until + START_SECONDS else until
                evidence = fleet.overtaken(final.domain, key, due, until)
                evidence = evidence or fleet.had_room(due, began)
            yield Redelivery(command_id, died, due, began, evidence)


def _taken_back(final: Final, claims: list[Member]) -> dict[int, float]:
    """When what dead workers held was taken back, by lease: at its end, or as a recorder said."""
    found: dict[int, float] = {}
    for trace in final.trail:
        if trace.kind == "WORKER_LOST":
            found[trace.details["lease_id"]] = trace.at
        elif str(trace.details.get("reason")).startswith((NOT_BEGUN, NOT_RECORDED, NOT_BLAMED)):
            worker = str(trace.details.get("worker"))
            for claim in claims:  # in order: the last one before it is meant
                if f"-{claim.pid}-" in worker and claim.at <= trace.at:
                    found[claim.token] = trace.at
    return found


def _next_run(case: Case, command_id: str, died: float, token: int) -> Event | None:
    """The first run after a death, of another delivery."""
    runs = [run for run in case.runs[command_id] if run["at"] > died and run["token"] != token]
    return min(runs, key=lambda run: float(run["at"]), default=None)


def _meddled(case: Case, fleet: Fleet, claims: list[Member], died: float, began: float) -> bool:
    """A second fault fell into it: of the store, or of a worker that had claimed it meanwhile."""
    if fleet.store_was_harmed(died, began):
        return True
    return any(
        fleet.was_harmed(claim.pid, claim.began - 0.5, began)
        for claim in claims
        if died < claim.at <= began
    )


def redelivery_is_prompt(case: Case) -> Iterator[Violation]:
    """P15: ≤ lease + 1 s at the 99th percentile after the death of a worker, in storms of kills, too.
    Stays beside another experiment have lease + 3 s; the short stays of every test run, which share the
    machine with other tests, lease + 5 s."""
    if case.terms is None:
        return
    found = list(redeliveries(case, case.terms))
    late = sorted((one for one in found if one.evidence), key=lambda one: -one.late)
    if len(late) > len(found) * SHARE_LATE:
        worst = late[0]
        what = (
            f"{len(late)} of {len(found)} commands of dead workers ran again later than lease + "
            f"{case.terms.redelivery:g} s, the last {worst.late:.1f} s after the lease"
        )
        story = case.story(worst.command_id, "claimed", "handled", "settled")
        yield Violation("P15", what, (f"died {worst.died:.6f}", str(worst.evidence), *story))


def stops_are_prompt(case: Case) -> Iterator[Violation]:
    """P18: SIGTERM to exit within grace + 1 s; within grace + 5 s while the store does not answer, when
    outcomes are waited for. The exit is the moment that the process wrote down last; one that another
    fault hit meanwhile is left out. Beside other experiments a stop has a second more for the load, and
    stays that have the machine alone judge it without."""
    if case.terms is None:
        return
    fleet = Fleet(case, case.terms)
    grace = case.terms.grace
    took = sorted(stops(case))
    late = [
        (seconds, pid, at)
        for seconds, pid, at in took
        if seconds - grace
        > case.terms.load + (AWAY_SECONDS if fleet.store_was_away(at, at + seconds) else STOP_SECONDS)
    ]
    if len(late) > len(took) * SHARE_LATE:
        seconds, pid, at = late[-1]
        what = f"{len(late)} of {len(took)} stops were late, the longest took {seconds:.1f} s"
        yield Violation("P18", what, (f"{at:.6f} SIGTERM to process {pid}",))


def stops_give_back_what_they_hold(case: Case) -> Iterator[Violation]:
    """P18: a worker that ends in order has settled or given back all that it held, or has tried to: no
    lease of its own is left to end by itself. Stops that another fault fell into are left out."""
    if case.terms is None:
        return
    fleet = Fleet(case, case.terms)
    ended = {
        pid: at
        for seconds, pid, at in stops(case)
        if not fleet.was_harmed(pid, 0.0, at - 1e-6) and not fleet.store_was_harmed(at, at + seconds)
    }
    exits = {event["pid"] for event in case.events if event["event"] == "exiting"}
    for command_id, claims in case.claims.items():
        final = case.final(command_id)
        if final is None:
            continue
        lost = {t.details.get("lease_id") for t in final.trail if t.kind == "WORKER_LOST"}
        for claim in claims:
            if claim.pid not in ended or claim.pid not in exits or claim.token not in lost:
                continue
            if not any(settle.token == claim.token for settle in case.settles[command_id]):
                what = "a stopped worker kept a command until its lease ended"
                yield Violation("P18", what, case.story(command_id, "claimed", "handled", "settled"))


def stops(case: Case) -> Iterator[tuple[float, int, float]]:
    """Seconds from SIGTERM to the end of a worker, its process, and the moment of SIGTERM."""
    ends = {event["pid"]: event["at"] for event in case.events if event["event"] == "exiting"}
    quiet = max((event["at"] for event in case.events), default=0.0)
    for fault in case.faults:
        if fault["fault"] != "stop worker":
            continue
        pid, at = fault["victim"], fault["at"]
        others = [
            other
            for other in case.faults
            if other["victim"] == pid and other is not fault and other["at"] >= at
        ]
        if not others:
            yield ends.get(pid, quiet) - at, pid, at
