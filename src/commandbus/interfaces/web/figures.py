"""Figures over time: samples of the last minutes, older ones from the store, and what follows from
them. One look serves every page and every listener for a moment."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import msgspec

from commandbus.interfaces.web.stores import Stores
from commandbus.operations.history import DomainHistory, Grain, Sample

FRESH_SECONDS = 1.0
LIVE_SECONDS = 600.0
SPANS = {"10m": 600, "1h": 3_600, "24h": 86_400, "7d": 604_800}
SECOND = 1_000_000


class Point(msgspec.Struct, frozen=True):
    """What happened in a short time: rates per second, depths, seconds."""

    at: datetime
    done: float
    failed: float
    waiting: int
    running: int
    parked: int
    oldest: float
    wait_p95: float | None
    run_p50: float | None
    run_p95: float | None


class Figures:
    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._samples: deque[dict[str, Sample]] = deque(maxlen=400)
        self._taken = 0.0
        self._taking = asyncio.Lock()

    async def now(self, fresh: float = FRESH_SECONDS) -> dict[str, Sample]:
        """Every domain as it was at most `fresh` seconds ago."""
        async with self._taking:
            if time.monotonic() - self._taken >= fresh or not self._samples:
                bus = await self._stores.reading()
                began = time.monotonic()
                taken = {d.domain: d.samples[0] for d in await bus.take_samples()}
                self._samples.append(taken)
                # A store that answers slowly is asked more rarely.
                self._taken = time.monotonic() + 4 * (time.monotonic() - began)
        return self._samples[-1]

    @property
    def parked(self) -> int:
        """How many commands were parked at the last look."""
        return sum(sample.parked for sample in self._samples[-1].values()) if self._samples else 0

    def rate(self, domain: str) -> float:
        """Commands of a domain that ended per second, over the last half minute that is known."""
        known = [samples[domain] for samples in self._samples if domain in samples]
        if len(known) < 2:
            return 0.0
        last = known[-1]
        first = next(s for s in known if s.at >= last.at - 30 * SECOND)
        seconds = (last.at - first.at) / SECOND
        return max(0.0, (_ended(last) - _ended(first)) / seconds) if seconds > 0 else 0.0

    def rates(self, domain: str) -> list[float]:
        """The same between each two looks, for a small drawing."""
        known = [samples[domain] for samples in self._samples if domain in samples]
        return [
            max(0.0, (_ended(b) - _ended(a)) / ((b.at - a.at) / SECOND))
            for a, b in itertools.pairwise(known)
            if b.at > a.at
        ]

    def forget(self) -> None:
        """Something was changed here, so the next look must see it."""
        self._taken = 0.0

    async def points(self, span: str, domain: str | None = None) -> list[Point]:
        """The figures of a span of time, of one domain or all together."""
        await self.now()
        seconds = SPANS.get(span, SPANS["10m"])
        since = datetime.now(UTC) - timedelta(seconds=seconds)
        if seconds <= LIVE_SECONDS:
            live = self._live(since, domain)
            if len(live) >= 3:
                return as_points(live)
        bus = await self._stores.reading()
        grain = Grain.MINUTE if seconds <= SPANS["24h"] else Grain.HOUR
        kept = await bus.get_history(since, domain=domain, grain=grain)
        return as_points(_aligned([*kept, *self._newest(domain)], grain))

    def _live(self, since: datetime, domain: str | None) -> list[dict[str, Sample]]:
        begin = since.timestamp() * SECOND
        chosen = [
            {name: s for name, s in samples.items() if domain in (None, name)}
            for samples in self._samples
        ]
        return [c for c in chosen if c and next(iter(c.values())).at >= begin]

    def _newest(self, domain: str | None) -> list[DomainHistory]:
        return [
            DomainHistory(name, [sample])
            for name, sample in self._samples[-1].items()
            if domain in (None, name)
        ]


def _ended(sample: Sample) -> int:
    return sample.completed + sample.failed + sample.canceled


def _aligned(histories: list[DomainHistory], grain: Grain) -> list[dict[str, Sample]]:
    """Samples of several domains side by side, by the step of time they belong to. A domain without a
    sample in a step keeps the one before."""
    step = int(grain.step.total_seconds() * SECOND)
    slots: dict[int, dict[str, Sample]] = {}
    for history in histories:
        for sample in history.samples:
            slots.setdefault(sample.at // step, {})[history.domain] = sample
    rows: list[dict[str, Sample]] = []
    present: dict[str, Sample] = {}
    for slot in sorted(slots):
        present = present | slots[slot]
        rows.append(present)
    return rows


def as_points(rows: list[dict[str, Sample]]) -> list[Point]:
    """What happened between each two looks."""
    points: list[Point] = []
    for before, after in itertools.pairwise(rows):
        at = max(sample.at for sample in after.values())
        seconds = (at - max(sample.at for sample in before.values())) / SECOND
        if seconds <= 0:
            continue
        samples = list(after.values())
        done = failed = 0
        for name, sample in after.items():
            was = before.get(name, sample)
            done += max(0, sample.completed - was.completed)
            failed += max(0, sample.failed - was.failed) + max(0, sample.parked - was.parked)
        points.append(
            Point(
                datetime.fromtimestamp(at / SECOND, UTC),
                done / seconds,
                failed / seconds,
                sum(sample.ready for sample in samples),
                sum(sample.running for sample in samples),
                sum(sample.parked for sample in samples),
                max((sample.oldest or 0.0 for sample in samples), default=0.0),
                _highest(sample.wait_p95 for sample in samples),
                _highest(sample.run_p50 for sample in samples),
                _highest(sample.run_p95 for sample in samples),
            )
        )
    return points


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
