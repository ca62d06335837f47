"""The parts of the dashboard by themselves: the filter, the charts, the judgement of health."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID
from xml.etree import ElementTree as ET

import httpx
import jinja2
import msgspec
import pytest

from commandbus import CommandBus, CommandStatus, HandlerRegistry
from commandbus.domain.presence import FleetStart
from commandbus.domain.process.values import ProcessStatus
from commandbus.errors import InvalidArgumentError
from commandbus.interfaces.cli import completing, output
from commandbus.interfaces.redaction import MASK, Redaction
from commandbus.interfaces.search import STATUSES, parse_search
from commandbus.interfaces.web import charts, views
from commandbus.interfaces.web.app import create_dashboard
from commandbus.interfaces.web.chart_pages import marks_of
from commandbus.interfaces.web.health import attention_of, domain_view
from commandbus.interfaces.web.openapi import PREFIX
from commandbus.interfaces.web.payloads import Payloads, fields_of
from commandbus.interfaces.web.stores import Stores
from commandbus.interfaces.web.stream import Stream
from commandbus.interfaces.web.timeseries import Figures
from commandbus.interfaces.web.views import later
from commandbus.interfaces.web.windows import SECOND, Window, points_of, window_of
from commandbus.operations.history import DomainHistory, Sample, record_history
from commandbus.records import QueueStats, WorkerInfo
from commandbus.testing import FakeClock

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ID = "0f0e0d0c-0b0a-4908-8706-050403020100"


def conditions(text: str) -> dict[str, Any]:
    return parse_search(text, Redaction().is_secret, NOW).conditions


def test_a_filter_becomes_conditions() -> None:
    assert conditions("") == {}
    assert conditions("status:parked domain:orders") == {
        "status": CommandStatus.IN_TROUBLESHOOTING_QUEUE,
        "domain": "orders",
    }
    assert conditions('type:ship tag:"two words" error:TimeoutError') == {
        "command_type": "ship",
        "tag": "two words",
        "error": "TimeoutError",
    }
    assert conditions("data.account:42 data.owner.city:Oslo") == {
        "data": {"account": "42", "owner.city": "Oslo"}
    }
    assert conditions("age:<2h") == {"created_after": NOW - timedelta(hours=2)}
    assert conditions("age:>30m") == {"created_before": NOW - timedelta(minutes=30)}
    assert conditions(f"batch:{ID}") == {"batch_id": UUID(ID)}


def test_a_word_alone_is_an_id_a_status_or_a_type() -> None:
    assert parse_search(ID).command_id == UUID(ID)
    assert conditions("failed") == {"status": CommandStatus.FAILED}
    assert conditions("ship") == {"command_type": "ship"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("status:lost", "Unknown status"),
        ("colour:red", "not something to filter by"),
        ("age:soon", "age is written as"),
        ("batch:7", "takes an id"),
        ("domain:", "followed by a value"),
        ('type:"open', "quote is not closed"),
        ("data.password:x", "secret"),
        ("data.user.api_key:x", "secret"),
    ],
)
def test_an_unknown_filter_is_reported(text: str, told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        conditions(text)


def test_masks_hide_and_are_lifted() -> None:
    redaction = Redaction()
    data = {"Password": "a", "list": [{"API-Key": "b", "n": 1}], "token": None, "note": MASK}
    hidden = redaction.hide(data)
    assert hidden == {
        "Password": MASK,
        "list": [{"API-Key": MASK, "n": 1}],
        "token": None,
        "note": MASK,
    }
    assert redaction.restore(hidden, data) == data
    assert redaction.restore({"Password": "new"}, data) == {"Password": "new"}


WINDOW = Window(int(NOW.timestamp()), 10, 5)


def test_a_chart_has_axes_values_and_a_table() -> None:
    mark = charts.Mark(NOW + timedelta(seconds=20), "a <deploy>")
    line = charts.Series("ended & done", "completed", [0, 5, None, 12, None])
    drawn = charts.line_chart("a <b>", WINDOW, [line], marks=[mark, charts.Mark(NOW, "at the edge")])
    tree = ET.fromstring(str(drawn).partition("</svg>")[0] + "</svg>")
    told = json.loads(tree.get("data-chart", ""))
    assert told["values"] == [["0", "5", "–", "12", "–"]]
    assert told["names"] == ["ended & done"]
    assert [text for _, text in told["marks"]] == ["a <deploy>", "at the edge"]
    assert len(list(tree.iter("polyline"))) == 2, "what is not known is a gap"
    assert len(set(list(tree.iter("polyline"))[1].get("points", "").split())) == 1, "a dot"
    ticks = [node.text for node in tree.iter("text")]
    assert ticks[:4] == ["0", "5", "10", "15"]
    assert ticks[4:] == ["12:00:15", "12:00:30", "12:00:45"]
    assert "a &lt;b&gt;" in drawn
    assert str(drawn).count("<tr>") == 4, "a head, and what is known"
    nothing = charts.Series("s", "completed", [None] * 5)
    assert "no figures" in charts.line_chart("empty", WINDOW, [nothing])


def test_workers_that_start_within_a_minute_are_one_mark() -> None:
    starts = [
        FleetStart(NOW + timedelta(seconds=after), version, workers, ("orders",))
        for after, version, workers in ((200, "2", 1), (0, "1", 3), (50, "2", 2))
    ]
    assert [(mark.at, mark.text) for mark in marks_of(starts)] == [
        (NOW, "5 workers started, version 1, 2"),
        (NOW + timedelta(seconds=200), "1 worker started, version 2"),
    ]


@pytest.mark.parametrize(
    ("form", "highest", "ticks"),
    [
        (charts.count, 10, ["0", "5", "10"]),
        (charts.count, 2, ["0", "1", "2"]),
        (charts.plain, 0.65, ["0", "0.2", "0.4", "0.6", "0.8"]),
        (charts.seconds, 0.03, ["0", "10 ms", "20 ms", "30 ms"]),
        (charts.seconds, 238, ["0", "60 s", "2 min", "3 min", "4 min"]),
        (charts.seconds, 3_000, ["0", "15 min", "30 min", "45 min", "60 min"]),
        (charts.seconds, 400_000, ["0", "48 h", "96 h", "144 h"]),
    ],
)
def test_an_axis_has_round_marks(form: charts.Format, highest: float, ticks: list[str]) -> None:
    line = charts.Series("s", "completed", [0, highest])
    drawn = charts.line_chart("t", Window(int(NOW.timestamp()), 10, 2), [line], form)
    tree = ET.fromstring(str(drawn).partition("</svg>")[0] + "</svg>")
    marks = [node.text for node in tree.iter("text") if node.get("text-anchor") == "end"]
    assert marks == ticks


async def test_every_range_shows_a_burst_that_no_dashboard_saw() -> None:
    """A domain that is new did all its work between two minutes; the dashboard is opened later."""
    clock = FakeClock(datetime.now(UTC) - timedelta(minutes=6))
    async with CommandBus("memory://", clock=clock) as bus:
        for minute in range(6):
            await bus.send("orders", "ship")
            taken = await bus.take_samples()
            if minute >= 2:
                at = taken[0].samples[0].at
                taken.append(DomainHistory("load", [Sample(at, 0, 0, 0, 0, 600, 0, 0, None)]))
            await bus.session.run(record_history(bus.scope, taken))
            clock.advance(60)
        await bus.send("load", "x")
        for span in ("10m", "1h"):
            figures, window = Figures(Stores(bus)), window_of(datetime.now(UTC), span)
            for _ in range(2):
                figures.forget()
                points = await figures.points(window)
            known = [point for point in points if point]
            assert max(point.waiting for point in known) >= 6
            ended = sum(point.done for point in known) * window.width
            assert ended == pytest.approx(600, rel=0.02), span
            assert max(point.done for point in known) >= {"10m": 9.9, "1h": 4.9}[span]
            alone = [point for point in await figures.points(window, "load") if point]
            assert sum(point.done for point in alone) * window.width == pytest.approx(600, rel=0.02)


def sample(second: float, completed: int, ready: int = 0) -> Sample:
    return Sample(int(second * SECOND), ready, 0, 0, 0, completed, 0, 0, None)


def test_a_rate_does_not_depend_on_how_often_it_was_looked_at() -> None:
    window = Window(0, 10, 6)
    now = datetime.fromtimestamp(60, UTC)
    seen = {"orders": [sample(second, second // 5) for second in range(61)]}
    kept = {"orders": [sample(0, 0), sample(60, 12)]}
    for series in (seen, kept):
        rates = [point and round(point.done, 3) for point in points_of(window, series, now)]
        assert rates == [0.2] * 6
    deep = {"orders": [sample(0, 0, 5), sample(14, 0, 90), sample(16, 0, 1)]}
    assert [p and p.waiting for p in points_of(window, deep, now)][:3] == [5, 90, 1]
    late = {"orders": [sample(-600, 0), sample(45, 0, 3)]}
    assert [p and p.waiting for p in points_of(window, late, now)] == [None, None, None, None, 3, 3]


def test_what_ended_while_there_was_no_sample_is_spread_over_that_time() -> None:
    """A worker that ended before it kept a sample, and a dashboard that was opened later."""
    window, now = Window(600, 10, 6), datetime.fromtimestamp(660, UTC)
    points = points_of(window, {"orders": [sample(0, 0), sample(640, 640, 3)]}, now)
    assert [point and round(point.done, 3) for point in points] == [1, 1, 1, 1, 0, 0]
    assert [point and point.waiting for point in points] == [None, None, None, None, 3, 3]


def test_a_moment_of_a_trail_is_shown_by_its_distance() -> None:
    since = datetime(2030, 5, 17, 8, tzinfo=UTC)
    shown = later("2030-05-17T08:00:10.000123+00:00", since)
    assert shown.endswith(' title="2030-05-17 08:00:10 UTC">in 10 s</time>')
    assert later(since.isoformat(), since).endswith(">at once</time>")
    assert later("<soon>", since) == "<soon>", "and escaped by the template"


@pytest.mark.parametrize(
    ("span", "begin", "end", "expected"),
    [
        ("10m", None, None, (600, 10)),
        ("1h", None, None, (3_600, 60)),
        ("24h", None, None, (86_400, 600)),
        ("7d", None, None, (604_800, 3_600)),
        ("", -3_600, -3_300, (300, 10)),
        ("", -30 * 86_400, -29 * 86_400, (86_400, 3_600)),
    ],
)
def test_the_axis_is_the_range_that_was_chosen(
    span: str, begin: int | None, end: int | None, expected: tuple[int, int]
) -> None:
    ends = [None if one is None else NOW + timedelta(seconds=one) for one in (begin, end)]
    window = window_of(NOW, span, *ends)
    assert (window.end - window.begin, window.width) == expected
    assert window.end == int(NOW.timestamp()) + (end or 0)


@pytest.mark.parametrize("length", [-60, 30, 400 * 86_400])
def test_a_range_that_cannot_be_drawn_is_refused(length: int) -> None:
    with pytest.raises(InvalidArgumentError, match="at least a minute"):
        window_of(NOW, "", NOW - timedelta(seconds=length), NOW)


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        ("/srv/shop/src/orders/handlers.py:48 in ship", "…/orders/handlers.py:48 in ship"),
        ("orders/handlers.py:48 in ship", "orders/handlers.py:48 in ship"),
        ("shop.py:3 in <module>", "shop.py:3 in <module>"),
    ],
)
def test_a_place_in_the_code_is_shortened_to_its_end(frame: str, told: str) -> None:
    assert views.place(frame) == told


def stats(**changes: Any) -> QueueStats:
    plain: dict[str, Any] = {
        "domain": "orders", "ready": 0, "scheduled": 0, "running": 0, "parked": 0, "completed": 0,
        "failed": 0, "canceled": 0, "oldest_ready_age": None, "paused": False,
    }  # fmt: skip
    return QueueStats(**plain | changes)


WORKER = WorkerInfo("w", "h", 1, "asyncio", ("orders",), (), 8, NOW, NOW, "0")


@pytest.mark.parametrize(
    ("changes", "health"),
    [
        ({}, "idle"),
        ({"ready": 5, "oldest_ready_age": 2.0}, "ok"),
        ({"ready": 5, "oldest_ready_age": 90.0}, "warning"),
        ({"ready": 5, "oldest_ready_age": 900.0}, "critical"),
        ({"parked": 1}, "warning"),
        ({"paused": True, "paused_reason": "because", "ready": 5}, "paused"),
    ],
)
def test_health_in_one_word(changes: dict[str, Any], health: str) -> None:
    assert domain_view(stats(**changes), [WORKER], 0.0).health == health


def test_work_without_workers_is_critical_and_comes_first() -> None:
    alone = domain_view(stats(ready=5, oldest_ready_age=1.0), [], 0.0)
    parked = domain_view(stats(domain="mail", parked=2), [WORKER], 0.0)
    assert alone.health == "critical"
    found = attention_of([parked, alone], [])
    assert [item.level for item in found] == ["critical", "warning"]


def test_the_time_to_drain_is_what_waits_by_the_rate() -> None:
    assert domain_view(stats(ready=500), [WORKER], 20.0).drain_seconds == 25.0
    assert domain_view(stats(ready=500), [WORKER], 0.0).drain_seconds is None
    assert domain_view(stats(), [WORKER], 20.0).drain_seconds is None


async def test_a_listener_that_comes_as_the_last_one_leaves_gets_changes() -> None:
    class Figures:
        async def now(self, fresh: float) -> dict[str, Any]:
            await asyncio.sleep(0)
            return {}

    async def allow() -> bool:
        return True

    figures: Any = Figures()
    stream = Stream(figures)
    first, second = stream.events("a", allow), stream.events("b", allow)
    await anext(first)
    await asyncio.sleep(0)
    await first.aclose()  # type: ignore[attr-defined]
    assert "hello" in await anext(second)
    assert "changed" in await asyncio.wait_for(anext(second), 10)
    await second.aclose()  # type: ignore[attr-defined]


class Address(msgspec.Struct):
    street: str


def shop() -> HandlerRegistry:
    orders = HandlerRegistry("orders")

    @orders.command("ship:now")
    def ship(article: int, to: Address, gift: bool = False) -> None: ...

    @orders.handler("orders", "anything")
    def anything(command: Any, context: Any) -> None: ...

    return orders


async def test_the_document_describes_the_payloads_of_typed_commands() -> None:
    async with CommandBus("memory://") as bus:
        app = create_dashboard(bus, open_to_this_machine=True, registry=shop())
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            described = (await client.get(f"{PREFIX}/openapi.json")).json()

    def at(reference: str) -> Any:
        found = described
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
        return found

    schemas = described["components"]["schemas"]
    assert [name for name in schemas if name.startswith("orders.")] == ["orders.ship_now"]
    payload = at(schemas["orders.ship_now"]["$ref"])
    assert payload["required"] == ["article", "to"]
    assert payload["properties"]["article"] == {"type": "integer"}
    assert at(payload["properties"]["to"]["$ref"])["properties"] == {"street": {"type": "string"}}


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


def test_the_form_offers_the_values_of_an_enumeration() -> None:
    registry = HandlerRegistry("paint")

    @registry.command
    def mix(
        colour: Colour, level: Level, second: Colour | None = None, other: int | str = 1
    ) -> None: ...

    (known,) = Payloads(registry).handlers()
    fields = fields_of(known.schema)
    assert fields is not None
    assert [(one["name"], one["kind"], one["choices"]) for one in fields] == [
        ("colour", "string", ["blue", "red"]),
        ("level", "integer", [1, 2]),
        ("second", "string", ["blue", "red"]),
        ("other", "json", None),
    ]


def test_the_form_asks_for_the_parameters_of_a_typed_command() -> None:
    payloads = Payloads(shop())
    (known,) = (view for view in payloads.handlers() if view.command_type == "ship:now")
    fields = fields_of(known.schema)
    assert fields is not None
    assert [(one["name"], one["kind"], one["required"]) for one in fields] == [
        ("article", "integer", True),
        ("to", "json", True),
        ("gift", "boolean", False),
    ]
    assert Payloads(None).components() == {}


@pytest.mark.parametrize("status", [*CommandStatus, *ProcessStatus])
def test_a_status_has_one_word_everywhere(status: str) -> None:
    word = output.status(status).plain
    assert f">{word.capitalize()}<" in views.status(status)
    if status in list(CommandStatus):
        assert STATUSES[word] == status, "the filter understands it"
    else:
        assert completing.process_statuses(word) == [word], "completion offers it"


async def test_templates_are_compiled_once_for_all_dashboards(monkeypatch: pytest.MonkeyPatch) -> None:
    async def overview() -> None:
        async with CommandBus("memory://") as bus:
            app = create_dashboard(bus, open_to_this_machine=True)
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                assert (await client.get("/")).status_code == 200

    await overview()
    monkeypatch.setattr(jinja2.Environment, "compile", lambda *_, **__: pytest.fail("compiled again"))
    await overview()
