"""Windows of time for charts, and samples as the points of a window.

A window is divided into buckets of equal width. The counters of samples only grow: the difference of
two samples is spread over the time between them, so that a burst is in the chart of every range that
holds it, whether a dashboard sampled each second or a worker kept one sample per minute. Depths and
times are the highest of their bucket.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import ceil

import msgspec

from commandbus.errors import InvalidArgumentError
from commandbus.operations.history import Grain, Sample

SPANS = {"10m": 600, "1h": 3_600, "24h": 86_400, "7d": 604_800}
WIDTHS = (10, 30, 60, 300, 600, 1_800, 3_600, 10_800, 86_400)
"""Widths of buckets in seconds."""
BUCKETS_MAX = 168
SHORTEST, LONGEST = 60, 366 * 86_400
SECOND = 1_000_000
STALE = 2.5
"""So many steps of the grain a depth counts as known after its sample."""


class Point(msgspec.Struct, frozen=True):
    """What happened in a short time, from `at` on: rates per second, highest depths, seconds. Depths
    and times are None where there was no sample near; rates are those between the samples around."""

    at: datetime
    done: float
    failed: float
    waiting: int | None
    running: int | None
    parked: int | None
    oldest: float | None
    wait_p95: float | None
    run_p50: float | None
    run_p95: float | None


class Window(msgspec.Struct, frozen=True):
    """A range of time in buckets: seconds since 1970, a multiple of the width."""

    begin: int
    width: int
    count: int
    span: str = ""
    """The name of a range that ends now; empty for a range that was chosen."""

    @property
    def end(self) -> int:
        return self.begin + self.count * self.width

    @property
    def grain(self) -> Grain:
        """The samples that it is made of."""
        return Grain.MINUTE if self.width < 3_600 else Grain.HOUR

    def at(self, index: int) -> datetime:
        return datetime.fromtimestamp(self.begin + index * self.width, UTC)


def window_of(
    now: datetime, span: str = "", begin: datetime | None = None, end: datetime | None = None
) -> Window:
    """The window of a span that ends now, or between two moments. Raises InvalidArgumentError."""
    if begin is None and end is None:
        span = span if span in SPANS else "10m"
        return _buckets(now.timestamp() - SPANS[span], now.timestamp(), span, now)
    last = now.timestamp() if end is None else min(end.timestamp(), now.timestamp())
    first = last - SPANS["1h"] if begin is None else begin.timestamp()
    if not SHORTEST <= last - first <= LONGEST:
        raise InvalidArgumentError(
            "A range is at least a minute and at most a year long, and does not begin in the future: "
            "give from and to, such as from=2030-05-17T08:00Z and to=2030-05-17T09:00Z."
        )
    return _buckets(first, last, "", now)


def _buckets(first: float, last: float, span: str, now: datetime) -> Window:
    is_old = now.timestamp() - first > Grain.MINUTE.kept.total_seconds()
    least = 3_600 if is_old else WIDTHS[0]
    fitting = (w for w in WIDTHS if w >= least and (last - first) / w <= BUCKETS_MAX)
    width = next(fitting, WIDTHS[-1])
    if span == "1h":  # workers keep a sample every minute
        width = 60
    begin = int(first // width) * width
    return Window(begin, width, max(1, ceil((last - begin) / width)), span)


def points_of(
    window: Window, series: Mapping[str, Sequence[Sample]], now: datetime
) -> list[Point | None]:
    """A point for each bucket, None where nothing is known. The samples of a domain are in order of
    time; those before the window say what it began with."""
    begin, width = window.begin * SECOND, window.width * SECOND
    done, failed = [0.0] * window.count, [0.0] * window.count
    for samples in series.values():
        for before, after in itertools.pairwise(samples):
            ended = max(0, after.completed - before.completed)
            bad = max(0, after.failed - before.failed) + max(0, after.parked - before.parked)
            if ended or bad:
                for index, share in _shares(before.at - begin, after.at - begin, width, window.count):
                    done[index] += ended * share
                    failed[index] += bad * share
    highest = _highest(window, series)
    points: list[Point | None] = []
    for index in range(window.count):
        known = highest[index]
        seconds = min(window.width, now.timestamp() - (window.begin + index * window.width))
        is_begun = seconds < window.width / 2  # too short to tell a rate
        has_ended = done[index] > 0 or failed[index] > 0
        if (known is None and not has_ended) or (is_begun and index):
            points.append(None)
            continue
        length, depths = max(seconds, 1.0), known or UNKNOWN
        points.append(Point(window.at(index), done[index] / length, failed[index] / length, *depths))
    return points


def _shares(first: int, last: int, width: int, count: int) -> Iterable[tuple[int, float]]:
    """The buckets between two moments, with the share of that time that each has."""
    if last <= first:
        return
    for index in range(max(0, first // width), min(count - 1, (last - 1) // width) + 1):
        inside = min(last, (index + 1) * width) - max(first, index * width)
        if inside > 0:
            yield index, inside / (last - first)


Highest = tuple[
    int | None, int | None, int | None, float | None, float | None, float | None, float | None
]
"""Waiting, running, parked, oldest, wait_p95, run_p50, run_p95."""
UNKNOWN: Highest = (None, None, None, None, None, None, None)


def _highest(window: Window, series: Mapping[str, Sequence[Sample]]) -> list[Highest | None]:
    """The depths of all domains together and the times of the slowest one, at their highest in each
    bucket; a depth counts on until the next sample, but not for long."""
    named = sorted(
        ((sample.at, name, sample) for name, found in series.items() for sample in found),
        key=lambda one: one[0],
    )
    begin, width = window.begin * SECOND, window.width * SECOND
    stale = int(window.grain.step.total_seconds() * SECOND * STALE)
    present: dict[str, Sample] = {}
    totals = [0, 0, 0]
    found: list[list[float | None] | None] = [None] * window.count
    last: int | None = None
    next_bucket = 0

    def carry(until: int) -> None:
        """Buckets that begin before a moment begin with the depths known then."""
        nonlocal next_bucket
        while next_bucket < window.count and begin + next_bucket * width <= until:
            opens = begin + next_bucket * width
            if last is not None and opens - last <= stale:
                found[next_bucket] = [*totals, None, None, None, None]
            next_bucket += 1

    for at, group in itertools.groupby(named, key=lambda one: one[0]):
        carry(at)
        rows = list(group)
        for _, name, sample in rows:
            was = present.get(name)
            for place, value in enumerate((sample.ready, sample.running, sample.parked)):
                totals[place] += value
                if was is not None:
                    totals[place] -= (was.ready, was.running, was.parked)[place]
            present[name] = sample
        last = at
        index = (at - begin) // width
        if 0 <= index < window.count:
            times = [
                _most(getattr(sample, name) for _, _, sample in rows)
                for name in ("oldest", "wait_p95", "run_p50", "run_p95")
            ]
            known = found[index] or [0] * 3 + [None] * 4
            found[index] = [_most(pair) for pair in zip(known, [*totals, *times], strict=True)]
    carry(window.end * SECOND)
    return [
        None
        if known is None
        else (int(known[0] or 0), int(known[1] or 0), int(known[2] or 0), known[3] or 0.0, *known[4:])  # type: ignore[misc]
        for known in found
    ]


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def from_zero(samples: Sequence[Sample], at: int) -> list[Sample]:
    """The samples of a domain that did not exist at a moment before the first of them."""
    return [Sample(at, 0, 0, 0, 0, 0, 0, 0, None), *samples]


def merged(*parts: Iterable[Sample]) -> list[Sample]:
    """Samples of a domain from several places, in order of time."""
    return sorted({sample.at: sample for part in parts for sample in part}.values(), key=_at)


def _at(sample: Sample) -> int:
    return sample.at


def since(window: Window) -> datetime:
    """From when on samples matter: some before the window say what it began with."""
    return window.at(0) - window.grain.step * 2 - timedelta(seconds=window.width)
