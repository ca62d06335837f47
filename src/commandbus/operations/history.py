"""History: figures of the past that outlive the commands they count.

A sample holds what was counted up to its moment, not what happened since the one before: a sample that
was not taken loses detail and nothing else, and samples do not depend on each other.
Samples of a minute are kept for two days, one per hour for a year.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.moment import SECOND, as_datetime, as_microseconds
from commandbus.operations.scope import Scope
from commandbus.store.documents import Document, readable
from commandbus.store.op import Op
from commandbus.store.records import QueueStats, Run

COUNT_MAX = 100_000
"""Waiting commands are counted no further for a figure."""
RUNS = 500
RECENT = 120 * SECOND


class Grain(StrEnum):
    MINUTE = "minute"
    HOUR = "hour"

    @property
    def step(self) -> timedelta:
        return timedelta(minutes=1) if self is Grain.MINUTE else timedelta(hours=1)

    @property
    def kept(self) -> timedelta:
        return timedelta(days=2) if self is Grain.MINUTE else timedelta(days=366)

    @property
    def page_length(self) -> timedelta:
        """The time that one document holds."""
        return timedelta(hours=1) if self is Grain.MINUTE else timedelta(days=1)

    def page(self, moment: datetime) -> str:
        """The name of the document that a moment belongs to: an hour of minutes, a day of hours."""
        return moment.strftime("%Y%m%d%H" if self is Grain.MINUTE else "%Y%m%d")


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """A domain at one moment; counts of what ended are since the beginning, times in seconds."""

    at: int
    ready: int
    scheduled: int
    running: int
    parked: int
    completed: int
    failed: int
    canceled: int
    oldest: float | None
    wait_p95: float | None = None
    run_p50: float | None = None
    run_p95: float | None = None
    actions: dict[str, int] = {}
    """What operators did about parked commands, since the beginning."""


class DomainHistory(msgspec.Struct, frozen=True):
    """The samples of a domain in order of time."""

    domain: str
    samples: list[Sample]


_samples = msgspec.json.Decoder(list[Sample])


def take_samples(scope: Scope) -> Op[list[DomainHistory]]:
    """Every domain as it is now, with how its newest commands fared."""
    domains = yield from scope.store.domains()
    if not domains:
        return []
    now = yield from scope.store.now()
    runs = [run for run in (yield from scope.store.recent_runs(RUNS)) if run.finished_at > now - RECENT]
    found: list[DomainHistory] = []
    for domain in domains:
        stats = yield from scope.store.stats(domain, COUNT_MAX)
        fared = [run for run in runs if run.domain == domain]
        found.append(DomainHistory(domain, [_sample(now, stats, fared)]))
    return found


def take_turn(scope: Scope) -> Op[bool]:
    """Whether the caller is the first of all processes in this minute that wants to keep samples. Of
    several at once one gets the turn; the others wait for its transaction."""
    minute = str((yield from scope.store.now()) // int(Grain.MINUTE.step.total_seconds() * SECOND))
    present = yield from scope.store.get_document("history", "turn")
    if present is not None and present.body == minute:
        return False
    version = present.version if present else 0
    turn = Document("history", "turn", version, "taken", None, minute)
    return (yield from scope.store.put_document(turn))


def record_history(scope: Scope, taken: Sequence[DomainHistory] | None = None) -> Op[int]:
    """Keep a sample of every domain, once a minute, whichever process asks: those given, or fresh ones.
    Returns how many were kept."""
    kept = 0
    for domain in (yield from take_samples(scope)) if taken is None else taken:
        for grain in Grain:
            kept += yield from _keep(scope, domain.domain, domain.samples[0], grain)
            for document in (yield from scope.store.due_documents(_kind(grain, domain.domain))):
                yield from scope.store.delete_document(document.kind, document.key)
    return kept


def get_history(
    scope: Scope, since: datetime, *, domain: str | None = None, grain: Grain | str = Grain.MINUTE
) -> Op[list[DomainHistory]]:
    """The samples since a moment, of one domain or all."""
    grain = Grain(grain)
    begin = as_microseconds(since, "since")
    domains = [domain] if domain is not None else (yield from scope.store.domains())
    found: list[DomainHistory] = []
    for name in domains:
        samples: list[Sample] = []
        before = grain.page(as_datetime(begin) - grain.page_length)
        documents = yield from scope.store.list_documents(_kind(grain, name), after=before, limit=500)
        for page in readable(documents, lambda d: _samples.decode(d.body)):
            samples += [s for s in page if s.at >= begin]
        found.append(DomainHistory(name, samples))
    return found


def _kind(grain: Grain, domain: str) -> str:
    return f"history.{grain}:{domain}"


def _keep(scope: Scope, domain: str, sample: Sample, grain: Grain) -> Op[int]:
    moment, step = as_datetime(sample.at), int(grain.step.total_seconds() * SECOND)
    kind, key = _kind(grain, domain), grain.page(moment)
    present = yield from scope.store.get_document(kind, key)
    pages = readable([present] if present else [], lambda d: _samples.decode(d.body))
    samples = pages[0] if pages else []
    if samples and samples[-1].at // step >= sample.at // step:
        return 0
    body = msgspec.json.encode([*samples, sample]).decode()
    until = sample.at + int(grain.kept.total_seconds() * SECOND)
    version = present.version if present else 0
    return int((yield from scope.store.put_document(Document(kind, key, version, "kept", until, body))))


def _sample(now: int, stats: QueueStats, runs: Sequence[Run]) -> Sample:
    ran = sorted(
        (run.finished_at - run.started_at) / SECOND
        for run in runs
        if run.started_at is not None and run.status is CommandStatus.COMPLETED
    )
    waited = sorted(
        max(0, run.started_at - run.due_at) / SECOND
        for run in runs
        if run.started_at is not None and run.attempts == 1
    )
    return Sample(
        now,
        stats.ready,
        stats.scheduled,
        stats.running,
        stats.parked,
        stats.completed,
        stats.failed,
        stats.canceled,
        stats.oldest_ready_age,
        percentile(waited, 0.95),
        percentile(ran, 0.5),
        percentile(ran, 0.95),
        stats.operator_actions,
    )


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The value that this share of them does not exceed; None of none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
