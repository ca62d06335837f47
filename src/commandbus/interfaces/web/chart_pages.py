"""The charts of pages: their range by the address, their lines, and the marks of deploys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.requests import Request

from commandbus.domain.batch import BatchRecord
from commandbus.domain.presence import FleetStart
from commandbus.interfaces.actions.model import Kind, Param
from commandbus.interfaces.cli import text
from commandbus.interfaces.cli.text import plural
from commandbus.interfaces.web import charts
from commandbus.interfaces.web.windows import Point, Window, window_of

DEPLOY = timedelta(minutes=1)
"""Workers that start within this time are one deploy."""
MOMENT = Param("moment", "A moment.", Kind.MOMENT)


def chosen_window(request: Request) -> Window:
    """The range of the charts: `span`, or `from` and `to`. Raises InvalidArgumentError."""
    query = request.query_params
    moments = [MOMENT.parse(query[name], name) if query.get(name) else None for name in ("from", "to")]
    return window_of(datetime.now(UTC), query.get("span", ""), *moments)


def draw(
    window: Window, points: list[Point | None], marks: Sequence[charts.Mark] = ()
) -> list[tuple[str, list[charts.Series], Any]]:
    """The charts of a page: name, lines for the legend, drawing."""

    def line(name: str, kind: str, field: str) -> charts.Series:
        return charts.Series(name, kind, [getattr(point, field) if point else None for point in points])

    drawn = {
        "Throughput per second": (
            charts.plain,
            [line("completed", "completed", "done"), line("failed or parked", "failed", "failed")],
        ),
        "Waiting and running": (
            charts.count,
            [
                line("waiting", "pending", "waiting"),
                line("running", "running", "running"),
                line("parked", "parked", "parked"),
            ],
        ),
        "Oldest waiting": (charts.seconds, [line("oldest", "parked", "oldest")]),
        "Latency": (
            charts.seconds,
            [
                line("run, median", "running", "run_p50"),
                line("run, 95 %", "pending", "run_p95"),
                line("wait, 95 %", "parked", "wait_p95"),
            ],
        ),
    }
    return [
        (name, lines, charts.line_chart(name, window, lines, form, marks))
        for name, (form, lines) in drawn.items()
    ]


def marks_of(starts: Sequence[FleetStart]) -> list[charts.Mark]:
    """When workers were started, as by a deploy: those within a minute together."""
    found: list[list[FleetStart]] = []
    for start in sorted(starts, key=lambda one: one.at):
        if found and start.at - found[-1][0].at < DEPLOY:
            found[-1].append(start)
        else:
            found.append([start])
    return [
        charts.Mark(
            group[0].at,
            f"{plural(sum(start.workers for start in group), 'worker')} started, version "
            + text.line(", ".join(sorted({start.version for start in group}))),
        )
        for group in found
    ]


def batch_bar(batch: BatchRecord) -> Any:
    total = batch.total or 1
    return charts.bar(
        [
            ("completed", batch.completed / total),
            ("failed", batch.failed / total),
            ("canceled", batch.canceled / total),
            ("parked", batch.in_troubleshooting / total),
        ],
        f"{batch.progress:.0%} of {batch.total:,} ended",
    )
