"""Figures over time: samples of the last minutes, older ones from the store, and what follows from
them. One look serves every page and every listener for a moment."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from datetime import UTC, datetime

from commandbus.interfaces.web.stores import Stores
from commandbus.interfaces.web.windows import Point, Window, from_zero, merged, points_of, since
from commandbus.operations.history import Grain, Sample

FRESH_SECONDS = 1.0
LOOKS_MAX = 600
SECOND = 1_000_000
MINUTE_SECONDS = 60.0
WINDOWS_MAX = 200

Row = dict[str, Sample]
"""Every domain, or one, at about the same moment."""
Series = dict[str, list[Sample]]
"""The samples of each domain, in order of time."""


class Figures:
    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._samples: deque[Row] = deque(maxlen=LOOKS_MAX)
        self._taken = 0.0
        self._taking = asyncio.Lock()
        self._kept: dict[tuple[str | None, str], tuple[float, Series]] = {}

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

    async def points(self, window: Window, domain: str | None = None) -> list[Point | None]:
        """A point for each bucket of a window, of one domain or all together."""
        await self.now()
        series = dict(await self._history(window, domain))
        first = min((sample.at for row in self._samples for sample in row.values()), default=0)
        for name, looks in self._looks(domain).items():
            if not series.get(name) and looks[0].at > first:
                looks = from_zero(looks, first)  # noqa: PLW2901 - it came while we looked
            series[name] = merged(series.get(name, []), looks)
        return points_of(window, series, datetime.now(UTC))

    async def _history(self, window: Window, domain: str | None) -> Series:
        """What workers kept; asked for once a minute, since it grows no faster."""
        key = (domain, window.span)
        asked, series = self._kept.get(key, (-MINUTE_SECONDS, {}))
        if window.span and time.monotonic() - asked < MINUTE_SECONDS:
            return series
        bus = await self._stores.reading()
        begin = since(window)
        kept = await bus.get_history(begin, domain=domain, grain=window.grain)
        series = {history.domain: history.samples for history in kept}
        for name, samples in series.items():
            if not samples or samples[0].at > window.begin * SECOND:
                series[name] = await self._with_beginning(name, samples, begin, window)
        if len(self._kept) >= WINDOWS_MAX:
            self._kept.clear()
        if window.span:
            self._kept[key] = (time.monotonic(), series)
        return series

    async def _with_beginning(
        self, name: str, samples: list[Sample], begin: datetime, window: Window
    ) -> list[Sample]:
        """A domain without a sample before the window: with the last one that was kept of an earlier
        hour, or from zero where it is new."""
        bus = await self._stores.reading()
        (older,) = await bus.get_history(begin - Grain.HOUR.kept, domain=name, grain=Grain.HOUR)
        before = [sample for sample in older.samples if sample.at < window.begin * SECOND]
        if before:
            return [before[-1], *samples]
        step = int(window.grain.step.total_seconds() * SECOND)
        return from_zero(samples, samples[0].at - step) if samples else []

    def _looks(self, domain: str | None) -> Series:
        found: Series = {}
        for row in self._samples:
            for name, sample in row.items():
                if domain in (None, name):
                    found.setdefault(name, []).append(sample)
        return found


def _ended(sample: Sample) -> int:
    return sample.completed + sample.failed + sample.canceled
