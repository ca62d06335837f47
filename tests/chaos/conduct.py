"""Groups, limits, replies, recorded steps, schedules, and what operators do: each under every fault."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise

from tests.chaos.case import Case, Final, Violation
from tests.chaos.kinds import ASKING, BURST, LIMIT, LIMITED, PACED, RATE
from tests.chaos.timeliness import Fleet
from tests.chaos.wholes import CLOCK_SLACK

REPLIED = {"COMPLETED", "FAILED", "CANCELED"}
"""A parked command has not ended, and replies nothing yet."""
HEARD_SECONDS = 1.0
"""A request to cancel has reached the handler within so many seconds, and those of `Terms.load`."""


def groups_run_in_order(case: Case) -> Iterator[Violation]:
    """P10: of one group, no handler begins before the command that was sent before has ended. Two sends
    are in order when the first was answered before the second began."""
    groups: dict[tuple[str, str], list[Final]] = defaultdict(list)
    for command_id, sent in case.invoked.items():
        final = case.final(command_id)
        if sent.get("group") is not None and final is not None and final.status == "COMPLETED":
            groups[sent["domain"], sent["group"]].append(final)
    for members in groups.values():
        members.sort(key=lambda member: member.sequence)
        for earlier, later in pairwise(members):
            answered = [a["at"] for a in case.answers[earlier.id] if a["event"] == "send_ok"]
            runs = [run["at"] for run in case.runs[later.id]]
            if not answered or answered[0] >= case.invoked[later.id]["at"] or not runs:
                continue
            if case.retried(earlier.id) or case.retried(later.id):
                continue  # an operator's retry comes when it comes
            if min(runs) < earlier.trail[-1].at - CLOCK_SLACK:
                what = "a command of a group began before the one in front of it had ended"
                yield Violation("P10", what, (*case.story(earlier.id), *case.story(later.id)))


def limits_hold(case: Case) -> Iterator[Violation]:
    """No more LIMITED commands of a domain run at once than their limit allows. Only runs whose lease
    was not taken back count, from the handler's start to its end."""
    spans: dict[str, list[tuple[float, int, str]]] = defaultdict(list)
    for command_id, sent in case.invoked.items():
        final = case.final(command_id)
        if sent["type"] != LIMITED or final is None:
            continue
        lost = {t.details.get("lease_id") for t in final.trail if t.kind == "WORKER_LOST"}
        ends = {(end["pid"], end["token"]): end["at"] for end in case.finished[command_id]}
        for run in case.runs[command_id]:
            ended = ends.get((run["pid"], run["token"]))
            if ended is not None and run["token"] not in lost:
                spans[sent["domain"]] += [(run["at"], 1, command_id), (ended, -1, command_id)]
    for domain, changes in spans.items():
        running: set[str] = set()
        for at, change, command_id in sorted(changes):
            (running.add if change > 0 else running.discard)(command_id)
            if len(running) > LIMIT:
                what = f"{len(running)} limited commands of {domain} ran at once, {LIMIT} may"
                yield Violation("P10", what, (f"at {at:.6f}", *sorted(running)))
                break


def rates_hold(case: Case) -> Iterator[Violation]:
    """No more PACED commands of a domain are claimed in a time than its limit lets pass meanwhile. A
    claim may come long after the token was taken, so all that were claimed are counted, and each once,
    from the first send, when the bucket is full."""
    firsts: dict[str, list[float]] = defaultdict(list)
    since: dict[str, float] = {}
    for command_id, sent in case.invoked.items():
        if sent["type"] != PACED:
            continue
        domain = sent["domain"]
        since[domain] = min(sent["at"], since.get(domain, sent["at"]))
        if claims := case.claims[command_id]:
            firsts[domain].append(min(claim.at for claim in claims))
    for domain, moments in firsts.items():
        for count, at in enumerate(sorted(moments), 1):
            most = BURST + RATE * (at + CLOCK_SLACK - since[domain])
            if count > most:
                what = f"{count} paced commands of {domain} were claimed where {most:.1f} may be"
                yield Violation("P10", what, (f"from {since[domain]:.6f} to {at:.6f}",))
                break


def each_end_replies_once(case: Case) -> Iterator[Violation]:
    """P13 begins here: one reply to each end that wants one, none to what has not ended."""
    replies = Counter(case.store.replies)
    for final, *_ in case.finals.values():
        wanted = int(final.type == ASKING and final.status in REPLIED)
        if replies[final.id] != wanted:
            what = f"{replies[final.id]} replies of a {final.status} command, {wanted} expected"
            yield Violation("P13", what, case.story(final.id))


def recorded_steps_are_not_repeated(case: Case) -> Iterator[Violation]:
    """P14: what was recorded is not called again, unless a crash of the server fell into it."""
    for command_id, calls in case.steps.items():
        recorded = [event["at"] for event in calls if event["event"] == "step_recorded"]
        again = [
            event for event in calls
            if event["event"] == "step" and recorded and event["at"] > recorded[0] + CLOCK_SLACK
        ]  # fmt: skip
        if again and not case.overlapped_by_run(command_id, recorded[0]):
            what = "a recorded step was called again"
            yield Violation("P14", what, case.story(command_id, "handled", "claimed"))


def occurrences_are_sent_once(case: Case) -> Iterator[Violation]:
    """P12 of schedules: every second of a schedule has its command, exactly one."""
    occurrences: dict[str, list[datetime]] = defaultdict(list)
    for name, occurrence in case.store.occurrences:
        occurrences[name].append(datetime.fromisoformat(occurrence))
    for name, found in occurrences.items():
        doubled = [occurrence for occurrence, count in Counter(found).items() if count > 1]
        wanted = int((max(found) - min(found)) / timedelta(seconds=1)) + 1
        if doubled:
            yield Violation("P12", f"schedule {name} sent an occurrence twice", (str(doubled[0]),))
        if len(set(found)) != wanted:
            what = f"schedule {name} left out {wanted - len(set(found))} of {wanted} occurrences"
            yield Violation("P12", what, (f"{min(found)} to {max(found)}",))


def operators_are_obeyed(case: Case) -> Iterator[Violation]:
    """P30: what an operator ended stays ended; nothing is claimed in a pause; nothing ends as CANCELED
    by itself."""
    for command_id, at in case.canceled.items():
        final = case.final(command_id)
        if final is None or (final.status != "CANCELED" and not case.retried(command_id)):
            yield Violation("P30", "a canceled command goes on", case.story(command_id))
        later = [claim for claim in case.claims[command_id] if claim.began > at + CLOCK_SLACK]
        if later:
            yield Violation("P30", "a canceled command was claimed", case.story(command_id))
    for final, *_ in case.finals.values():
        if final.status == "CANCELED" and final.id not in case.cancels_invoked:
            yield Violation("P30", "a command was canceled by nobody", case.story(final.id))
    for domain, began, ended in case.pauses:
        for call in case.claim_calls:
            if call["began"] > began + CLOCK_SLACK and call["at"] < ended - CLOCK_SLACK:
                taken = [m["id"] for m in call["members"] if m["domain"] == domain]
                if taken:
                    what = f"{len(taken)} commands of {domain} were claimed in a pause"
                    lines = (f"paused {began:.6f} to {ended:.6f}", *case.story(taken[0], "claimed"))
                    yield Violation("P30", what, lines)


def requests_to_stop_are_heard(case: Case) -> Iterator[Violation]:
    """P30: a command that was asked to stop while it ran ends soon, and does not begin again. Its
    handlers give way at once, so one that goes on was not asked. Requests that a fault fell into, of
    the store or of the worker, are left out, and what an operator lets be tried again."""
    if case.terms is None:
        return
    fleet, patience = Fleet(case, case.terms, "pause"), HEARD_SECONDS + case.terms.load
    for command_id, at in case.asked_to_stop.items():
        if case.retried(command_id):
            continue
        for run in (*case.runs[command_id], *case.finished[command_id]):
            late = run["at"] - at
            harmed = fleet.was_harmed(run["pid"], 0.0, run["at"])
            if late <= patience or harmed or fleet.store_was_away(at, run["at"]):
                continue
            what = f"a command ran {late:.1f} s after it was asked to stop"
            lines = (f"asked {at:.6f}", *case.story(command_id, "handled", "claimed", "settled"))
            yield Violation("P30", what, lines)
            break


CHECKS = (
    groups_run_in_order,
    limits_hold,
    rates_hold,
    each_end_replies_once,
    recorded_steps_are_not_repeated,
    occurrences_are_sent_once,
    operators_are_obeyed,
    requests_to_stop_are_heard,
)
