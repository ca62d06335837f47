"""Figures over time: samples of the last minutes, older ones from the store, and what follows from
them. One look serves every page and every listener for a moment."""

from __future__ import annotations

import asyncio
import itertools
import time
from bisect import bisect
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
MINUTE_SECONDS = 60.0
POINTS_MAX = 120
DOMAINS_MAX = 200

Row = dict[str, Sample]
"""Every domain, or one, at about the same moment."""


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
        self._samples: deque[Row] = deque(maxlen=int(LIVE_SECONDS))
        self._taken = 0.0
        self._taking = asyncio.Lock()
        self._minutes: dict[str | None, tuple[float, list[Row]]] = {}

    async def now(self, fresh: float = FRESH_SECONDS) -> Row:
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
            begin = int(since.timestamp() * SECOND)
            rows = _filled(await self._older(since, domain), self._live(domain))
            return as_points(thinned([row for row in rows if _at(row) >= begin]))
        bus = await self._stores.reading()
        grain = Grain.MINUTE if seconds <= SPANS["24h"] else Grain.HOUR
        kept = await bus.get_history(since, domain=domain, grain=grain)
        return as_points(_aligned([*kept, *self._newest(domain)], grain))

    async def _older(self, since: datetime, domain: str | None) -> list[Row]:
        """What workers kept of these minutes; asked for once a minute, since it grows no faster."""
        asked, rows = self._minutes.get(domain, (-MINUTE_SECONDS, []))
        if time.monotonic() - asked >= MINUTE_SECONDS:
            bus = await self._stores.reading()
            rows = _aligned(await bus.get_history(since, domain=domain), Grain.MINUTE)
            if len(self._minutes) >= DOMAINS_MAX:
                self._minutes.clear()
            self._minutes[domain] = (time.monotonic(), rows)
        return rows

    def _live(self, domain: str | None) -> list[Row]:
        chosen = (
            {name: s for name, s in samples.items() if domain in (None, name)}
            for samples in self._samples
        )
        return [row for row in chosen if row]

    def _newest(self, domain: str | None) -> list[DomainHistory]:
        return [
            DomainHistory(name, [sample])
            for name, sample in self._samples[-1].items()
            if domain in (None, name)
        ]


def _ended(sample: Sample) -> int:
    return sample.completed + sample.failed + sample.canceled


def _at(row: Row) -> int:
    return max(sample.at for sample in row.values())


def _filled(kept: list[Row], live: list[Row]) -> list[Row]:
    """What was seen here; and of minutes in which nobody looked, what workers kept."""
    looks = [_at(row) for row in live]

    def is_missing(row: Row) -> bool:
        place = bisect(looks, _at(row))
        near = looks[max(0, place - 1) : place + 1]
        return all(abs(look - _at(row)) > MINUTE_SECONDS * SECOND for look in near)

    return sorted([*filter(is_missing, kept), *live], key=_at)


def thinned(rows: list[Row]) -> list[Row]:
    """As many as a chart can show, about equally far apart; the newest is one of them."""
    if len(rows) <= POINTS_MAX:
        return rows
    step = (_at(rows[-1]) - _at(rows[0])) // POINTS_MAX
    kept = [rows[-1]]
    for row in reversed(rows):
        if _at(kept[-1]) - _at(row) >= step:
            kept.append(row)
    return kept[::-1]


def _aligned(histories: list[DomainHistory], grain: Grain) -> list[Row]:
    """Samples of several domains side by side, by the step of time they belong to. A domain without a
    sample in a step keeps the one before."""
    step = int(grain.step.total_seconds() * SECOND)
    slots: dict[int, Row] = {}
    for history in histories:
        for sample in history.samples:
            slots.setdefault(sample.at // step, {})[history.domain] = sample
    rows: list[Row] = []
    present: Row = {}
    for slot in sorted(slots):
        present = present | slots[slot]
        rows.append(present)
    return rows


def as_points(rows: list[Row]) -> list[Point]:
    """What happened between each two looks."""
    points: list[Point] = []
    for before, after in itertools.pairwise(rows):
        at = _at(after)
        seconds = (at - _at(before)) / SECOND
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
