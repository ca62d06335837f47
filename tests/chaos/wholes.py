"""Promises about more than one row: effects of transactions, unique keys, batches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from math import inf

from tests.chaos.case import Batch, Case, Final, KeyTry, Violation
from tests.chaos.kinds import BATCH_DONE, follow_up_of

CLOCK_SLACK = 0.002
"""Two processes of one machine read the clock; a moment may be rounded."""


def transactions_take_effect_once(case: Case) -> Iterator[Violation]:
    """An effect, a follow-up and a completed command: all three, or none."""
    effects: dict[str, list[int]] = defaultdict(list)
    for command_id, token in case.store.effects:
        effects[command_id].append(token)
    transfers = {c for c, sent in case.invoked.items() if sent["type"] == "transfer"}
    for command_id in transfers | effects.keys():
        final, tokens = case.final(command_id), effects[command_id]
        done = final is not None and final.status == "COMPLETED"
        if len(tokens) != done:
            what = f"{len(tokens)} effects of a {final.status if final else 'missing'} command"
            seen = tuple(f"effect under token {token}" for token in tokens)
            yield Violation("P4", what, (*case.story(command_id), *seen))
        sent = case.final(follow_up_of(command_id)) is not None
        if sent != done:
            what = "a follow-up without its effect" if sent else "an effect without its follow-up"
            yield Violation("P4", what, case.story(command_id))


def a_key_has_one_live_command(case: Case) -> Iterator[Violation]:
    kept: dict[str, list[tuple[KeyTry, Final]]] = defaultdict(list)
    for tried in case.tries.values():
        final = case.final(tried.id)
        if tried.fate == "key_undone" and final is not None:
            yield Violation("P11", "a send that was undone left a command", _answered(case, tried))
        if tried.fate == "key_kept" and tried.holder is None and final is None:
            yield Violation(
                "P1", "a command whose transaction was committed is gone", _answered(case, tried)
            )
        if tried.fate == "key_kept" and tried.holder is not None:
            yield from _named(case, tried)
        if final is not None:
            kept[f"{case.invoked[tried.id]['domain']} {tried.key}"].append((tried, final))
    for key, found in kept.items():
        yield from _overlapping(case, key, found)
    for key in case.store.held_keys:
        yield Violation("P11", "a key is taken although no command is alive", (key,))


def _named(case: Case, tried: KeyTry) -> Iterator[Violation]:
    """Who is said to have a key must exist, and have it."""
    assert tried.holder is not None
    holder = case.final(tried.holder)
    if holder is None or holder.key != tried.key:
        what = "a sender was told of a holder that never had the key"
        yield Violation("P11", what, (*_answered(case, tried), *case.story(tried.holder)))
    if case.final(tried.id) is not None:
        what = "a sender was told that nothing was added, and its command is there"
        yield Violation("P11", what, _answered(case, tried))


def _overlapping(case: Case, key: str, found: list[tuple[KeyTry, Final]]) -> Iterator[Violation]:
    """A later sender got the key, and knew so, before the end of the earlier holder was recorded. What
    is parked has not ended."""
    found.sort(key=lambda pair: pair[1].sequence)
    for (_, earlier), (tried, _) in pairwise(found):
        ended = earlier.trail[-1].at if earlier.trail else 0.0
        if earlier.status == "IN_TROUBLESHOOTING_QUEUE":
            ended = inf
        if tried.ended is not None and tried.ended < ended - CLOCK_SLACK:
            what = f"two live commands have the key {key!r}"
            yield Violation("P11", what, (*case.story(earlier.id), *_answered(case, tried)))


def _answered(case: Case, tried: KeyTry) -> tuple[str, ...]:
    when = "nobody knows" if tried.ended is None else f"{tried.ended:.6f}"
    told = f"{tried.began:.6f} {tried.id} asks for {tried.key!r}; at {when} {tried.fate} {tried.holder}"
    return (told, *case.story(tried.id))


def batches_count_and_complete_once(case: Case) -> Iterator[Violation]:
    members: dict[str, list[Final]] = defaultdict(list)
    completions: dict[str, list[Final]] = defaultdict(list)
    for final, *_ in case.finals.values():
        if final.batch is not None:
            (completions if final.type == BATCH_DONE else members)[final.batch].append(final)
    for batch in case.store.batches:
        yield from _batch(batch, members[batch.id], completions[batch.id])
    known = {batch.id for batch in case.store.batches}
    for batch_id in (members.keys() | completions.keys()) - known:
        yield Violation("P12", "commands of a batch that does not exist", (f"batch {batch_id}",))


def _batch(batch: Batch, members: list[Final], completions: list[Final]) -> Iterator[Violation]:
    counted = Counter(final.status for final in members)
    seen = (counted["COMPLETED"], counted["FAILED"], counted["CANCELED"])
    seen += (counted["IN_TROUBLESHOOTING_QUEUE"],)
    stored = (batch.completed, batch.failed, batch.canceled, batch.parked)
    lines = (f"{batch}", *(f"{m.id} {m.status} {_moment(m)}" for m in (*members, *completions)))
    if stored != seen or batch.total != len(members):
        yield Violation("P12", f"counted {stored} of {batch.total}, and there are {seen}", lines)
    due = not seen[3]
    if len(completions) != due or batch.complete != due:
        what = f"{len(completions)} completions of a batch with {seen[3]} parked commands"
        yield Violation("P12", what, lines)
    for completion in completions:
        late = [m for m in members if m.trail and m.trail[-1].at > completion.trail[0].at + CLOCK_SLACK]
        if late:
            yield Violation("P12", "completed before its last command had ended", lines)


def _moment(final: Final) -> str:
    return f"{final.trail[0].at:.6f} to {final.trail[-1].at:.6f}" if final.trail else "no trail"
