"""How long every page, its JSON twin and every list of the command line take with a large store.

    python -m bench.pages                          300,000 commands in an SQLite file
    python -m bench.pages --postgres               1,000,000 in a PostgreSQL of its own
    python -m bench.pages --commands 100000 --parked 15000 --live --phone --only-pages
    python -m bench.pages --url postgresql://…/empty --commands 1000000

The store is filled with commands of all states by plain SQL, then each page is asked for several times
through the app, without a network, and each list is printed by the command line in this process. With
--live, another process sends and works meanwhile. With --phone, Chromium opens each page on a phone of
390 by 844 pixels, and its length is given in screens. Pages are made from the routes of the dashboard,
so none is forgotten; filters, second pages and ranges of time come on top.

Prints the first visit of each page, when its template is compiled, and the median and the slowest of
those after it; exit code 1 when a single one is slower than 300 ms, or a
page longer than ten screens. At the end a few lists are run as programs, the start of the interpreter
included.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import pty
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from bench.page_store import (
    DOMAINS,
    Filling,
    command_id,
    fill_history,
    fill_postgres,
    fill_sqlite,
    process_id,
)
from bench.servers import own_postgres
from bench.traffic import Deliver, registry, traffic
from commandbus import CommandBus, Schedule, SendRequest
from commandbus.interfaces.web import create_dashboard
from commandbus.interfaces.web.bulk import KIND, new_bulk
from commandbus.store.documents import Document

BOUND_SECONDS, HELP_SECONDS = 0.300, 0.250
ROUNDS, LIST_ROUNDS = 10, 5
SCREENS_MAX, PHONE_WIDTH, PHONE_HEIGHT = 10, 390, 844
PATIENCE_MS = 180_000
"""For the browser, whose time does not count: the machine may have other work."""
API = "/api/v1"
BESIDE = ("/static/{name}", "/stream", "/sign-in", "/{rest:path}", API + "{rest:path}")
"""Routes that are no pages, or have no end."""
OTHER_TWINS = {"/": "/overview", "/audit?view=actions": "/actions"}


@dataclass
class Plan:
    """The addresses of all pages, and of their JSON twins."""

    pages: list[str]
    twins: dict[str, str] = field(default_factory=dict)

    @property
    def alone(self) -> list[str]:
        """Documents that are not the twin of a page."""
        twins = set(self.twins.values())
        return [page for page in self.pages if page.startswith((API, "/metrics")) and page not in twins]


async def prepare(url: str, filling: Filling) -> dict[str, Any]:
    """Everything that is not filled by SQL; the values of parameters in routes."""
    async with CommandBus(url) as bus:
        await fill_history(bus, filling)
        sent = [SendRequest("orders", "ship", {"order": n, "city": "Oslo"}) for n in range(1_000)]
        for week in range(60):
            await bus.create_batch(sent[:20], name=f"week {week}")
            name = f"nightly-{week}"
            await bus.put_schedule(
                Schedule(name=name, domain="orders", command_type="report", cron="0 3 * * *")
            )
        batch = await bus.create_batch(sent, name="large")
        ana = bus.acting("ana")
        await ana.open_breaker("bank", 900, reason="maintenance")
        await ana.set_limit("orders", concurrency=50)
        await ana.pause("mail", "the mail server moves")
        bulk = new_bulk("Retry", {"Domain": "orders"}, "", "ana", "mended", filling.parked)
        body = msgspec.json.encode(bulk).decode()
        await bus.session.run(
            bus.scope.store.put_document(Document(KIND, bulk.bulk_id, 0, "running", None, body))
        )
        running = await bus.list_processes(process_type=Deliver.process_type, limit=1)
        parked = filling.newest_parked
        return {
            "domain": DOMAINS[parked % 4],
            "command_id": command_id(parked),
            "batch_id": batch.batch_id,
            "bulk_id": bulk.bulk_id,
            "process_id": running[0].process_id if running else process_id(filling.count // 10 * 10),
            "name": "nightly-1",
            "target": "bank",
        }


def filtered(values: dict[str, Any], group: str) -> list[str]:
    """Pages with conditions, by hand."""
    now = datetime.now(UTC)
    two = [(now - timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%MZ") for hours in (9, 3)]
    moments = f"from={two[0]}&to={two[1]}"
    found = ["/?span=1h", "/?span=24h", "/?span=7d", f"/?{moments}", f"/domains/orders?{moments}",
             "/domains/orders?span=7d", "/troubleshooting?domain=orders", "/troubleshooting?page=2",
             "/troubleshooting?domain=orders&command_type=type7",
             "/commands/retry?everything=on", f"/commands/retry?group={group}",
             "/commands/retry?error_code=TIMEOUT", "/commands/retry?error_code=NOTHING",
             "/batches?domain=orders", "/processes?status=COMPLETED",
             "/processes?status=WAITING_FOR_TROUBLESHOOTING", "/processes?process_type=saga1",
             "/schedules?page=2", "/audit?event=OPERATOR_RETRY", "/audit?event=MOVED_TO_TSQ",
             "/audit?actor=ana", "/audit?domain=mail", "/audit?view=actions",
             "/send?domain=live&type=ship"]  # fmt: skip
    searches = ["status:pending", "status:running", "status:completed", "status:failed",
                "status:parked", "status:canceled", "domain:mail", "type:type7", "type:nothing",
                "tag:vip", "tag:nothing", f"correlation:{command_id(7)}",
                "error:NO_SUCH_CITY", "error:NOTHING", "data.account:42", "data.city:Oslo",
                "data.account:none", "age:>12h", "age:<1h", "age:>3h age:<9h",
                "status:completed domain:mail type:type3", "status:pending type:nothing",
                command_id(7).hex[-9:], "internal:yes", f"batch:{values['batch_id']}"]  # fmt: skip
    return found + [f"/commands?q={quote(search)}" for search in searches]


async def plan(app: Any, client: httpx.AsyncClient, values: dict[str, Any]) -> Plan:
    """Every route that answers GET, with real parameters; then pages with filters, and second pages."""
    routes = [r.path for r in app.routes if "GET" in r.methods and r.path not in BESIDE]
    groups = (await client.get(f"{API}/troubleshooting/groups")).json()["groups"]
    plain = [page for route in routes if _leads_to(app, page := route.format(**values), route)]
    found = [page for page in plain if not _many(page)]
    found += [f"{page}?domain=orders" for page in plain if _many(page)]
    found += filtered(values, groups[0]["fingerprint"])
    for page in ("/commands", "/troubleshooting", "/batches", "/processes", "/audit", "/actions",
                 f"/batches/{values['batch_id']}", "/commands?q=status:parked"):  # fmt: skip
        joint = "&" if "?" in page else "?"
        cursor = (await client.get(f"{API}{page}{joint}limit=30")).json()["next"]
        after = f"after={quote(cursor)}" if cursor else ""
        place = "/audit?view=actions" if page == "/actions" else page
        found += [f"{place}{'&' if '?' in place else '?'}{after}"] if after else []
    twins = {page: twin for page in found if (twin := _twin(page, set(plain)))}
    return Plan(found, twins)


def _leads_to(app: Any, page: str, route: str) -> bool:
    """Whether no earlier route has the address, such as a domain that is called `pause`."""
    asked = (r for r in app.routes if "GET" in r.methods and r.path_regex.match(page))
    return bool(next(asked).path == route)


def _many(page: str) -> bool:
    """Whether it is the preview of an action on many commands, which wants to know which."""
    return page.count("/") == 2 and page.startswith("/commands/")


def _twin(page: str, known: set[str]) -> str:
    base, has_query, query = page.partition("?")
    for ours, theirs in OTHER_TWINS.items():
        if page.startswith(ours) and (ours != "/" or base == "/"):
            return f"{API}{theirs}" + (f"?{query}" if has_query else "")
    return f"{API}{page}" if f"{API}{base}" in known else ""


def screens(url: str, pages: list[str]) -> dict[str, float]:
    """How long each page is on a phone."""
    from tests.web.browser import browser
    from tests.web.server import served

    async def nothing(bus: CommandBus) -> None: ...

    found = dict[str, float]()
    with served(url, nothing, registry=registry) as place, browser() as opened:
        phone = opened.new_context(viewport={"width": PHONE_WIDTH, "height": PHONE_HEIGHT})
        page = phone.new_page()
        page.goto(place.link)
        for path in pages:
            page.goto(place.url + path, wait_until="load", timeout=PATIENCE_MS)
            height, width = page.evaluate(
                "[document.documentElement.scrollHeight, document.documentElement.scrollWidth]"
            )
            found[path] = inf if width > PHONE_WIDTH else height / PHONE_HEIGHT
    return found


def lists(filling: Filling) -> list[str]:
    """Commands of the command line that read."""
    one = command_id(filling.newest_parked)
    searches = ["", "--status completed", "--status pending", "--status failed", "--domain mail",
                "--type type7", "--type nothing", "--tag vip", "--tag nothing", "error:NOTHING",
                "error:NO_SUCH_CITY", "data.account:42", "data.account:none", "age:>12h"]  # fmt: skip
    return [
        *(f"list {search}".strip() for search in searches),
        f"show {one}", f"show {one.hex[-9:]}", f"why {one}", f"audit {one}", "audit",
        "audit --event OPERATOR_RETRY", "audit --who ana", "audit --people", "audit --restarts",
        "queue list", "queue stats orders", "tsq list", "tsq list --domain mail", "tsq count",
        "batch list", "process list", "process list --status troubleshooting", "schedule list",
        "breaker list", "limit list", "workers", "health", "db doctor",
    ]  # fmt: skip


def report(took: list[float], what: str, bound: float = BOUND_SECONDS) -> bool:
    """Prints a line; whether one was too slow."""
    late = max(took) > bound
    mark = "  SLOW" if late else ""
    print(f"{statistics.median(took) * 1e3:8.1f} ms  {max(took) * 1e3:8.1f} ms  {what}{mark}")
    return late


def measure_lists(url: str, filling: Filling) -> int:
    from typer.testing import CliRunner

    from commandbus.interfaces.cli.app import app

    slow = 0
    for line in lists(filling):
        took = []
        for turn in range(LIST_ROUNDS + 1):
            began = time.perf_counter()
            done = CliRunner().invoke(app, ["--url", url, *line.split()])
            if turn:  # the first one imports
                took.append(time.perf_counter() - began)
            assert done.exit_code in (0, 1, 6, 7), (line, done.output[:500], done.exception)
        # A doctor looks at the whole of it, and may take the time.
        slow += report(took, f"commandbus {line}", inf if line == "db doctor" else BOUND_SECONDS)
    return slow


def measure_programs(url: str) -> int:
    """As somebody waits for them who has used them before: in a pipe, and on a terminal. What Python
    and the libraries take to start is shown beside them, and not counted against a list."""
    python, libraries = [sys.executable], "typer, rich.console, rich.table, msgspec"
    libraries += ", psycopg_pool" if url.startswith("postgresql") else ", sqlite3"
    start = _timed(_in_pipe, [*python, "-c", f"import {libraries}"])
    report(start, "Python with the libraries of the programs below, nothing else", inf)
    lists_bound = BOUND_SECONDS + statistics.median(start)
    chosen = ["list", "list --status failed --domain mail", "tsq list", "queue list", "process list"]
    slow = 0
    for line, bound in {"--help": HELP_SECONDS, **dict.fromkeys(chosen, lists_bound)}.items():
        program = [*python, "-m", "commandbus", "--url", url, *line.split()]
        for name, run in (("in a pipe", _in_pipe), ("on a terminal", _on_terminal)):
            slow += report(_timed(run, program), f"the program commandbus {line}, {name}", bound)
    return slow


def _timed(run: Callable[[list[str]], None], program: list[str]) -> list[float]:
    run(program)
    took = []
    for _ in range(LIST_ROUNDS):
        began = time.perf_counter()
        run(program)
        took.append(time.perf_counter() - began)
    return took


def _in_pipe(program: list[str]) -> None:
    subprocess.run(program, check=True, capture_output=True)


def _on_terminal(program: list[str]) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(program, stdin=theirs, stdout=theirs, stderr=theirs) as running:
        os.close(theirs)
        with contextlib.suppress(OSError):  # a terminal that nobody holds any more
            while os.read(ours, 65_536):
                pass
    os.close(ours)
    assert running.returncode == 0, program


async def timed(client: httpx.AsyncClient, path: str) -> list[float]:
    """Seconds of each visit. The first one comes on top: a process compiles each template once."""
    took = []
    for _ in range(1 + ROUNDS):
        began = time.perf_counter()
        answer = await client.get(path)
        took.append(time.perf_counter() - began)
        assert answer.status_code == 200, (path, answer.text[:500])
    return took


def shown(took: list[float]) -> str:
    if not took:
        return " " * 28
    first, *rest = (one * 1e3 for one in took)
    return f"{first:7.1f} {statistics.median(rest):8.1f} {max(rest):9.1f}  "


async def measure_pages(client: httpx.AsyncClient, made: Plan, lengths: dict[str, float]) -> int:
    """Prints a line for each page; how many were too slow or too long."""
    print("         page, ms                    JSON, ms            phone")
    print("  first   median   slowest    first   median   slowest   screens")
    bad = 0
    for page in made.pages:
        if page.startswith(API) and page not in made.alone:
            continue
        took = await timed(client, page)
        twin = await timed(client, made.twins[page]) if page in made.twins else []
        length = lengths.get(page)
        faults = ["SLOW"] * (max(took[1:] + twin[1:]) > BOUND_SECONDS)
        faults += ["LONG"] * (length is not None and length > SCREENS_MAX)
        bad += bool(faults)
        size = "     " if length is None else f"{length:5.1f}"
        print(f"{shown(took)}{shown(twin)}{size}  {page}  {' '.join(faults)}", flush=True)
    return bad


async def with_client(url: str, work: Callable[[Any, httpx.AsyncClient], Any]) -> Any:
    async with CommandBus(url) as bus:
        app = create_dashboard(bus, open_to_this_machine=True, registry=registry)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await work(app, client)


def measure(url: str, filling: Filling, *, phone: bool) -> int:
    values = asyncio.run(prepare(url, filling))
    made: Plan = asyncio.run(with_client(url, lambda app, client: plan(app, client, values)))
    wide = [page for page in made.pages if not page.startswith((API, "/metrics"))]
    lengths = screens(url, wide) if phone else {}
    bad: int = asyncio.run(with_client(url, lambda app, client: measure_pages(client, made, lengths)))
    return bad


async def migrate(url: str) -> None:
    async with CommandBus(url, migrate=True):
        pass


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pages")
    parser.add_argument("--url", help="an empty PostgreSQL database; default: an SQLite file")
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL of its own")
    parser.add_argument("--commands", type=int)
    parser.add_argument("--parked", type=int, help="so many of them are parked; default: one of 200")
    parser.add_argument("--live", action="store_true", help="with a sender and a worker meanwhile")
    parser.add_argument("--phone", action="store_true", help="also how long pages are on a phone")
    parser.add_argument("--only-pages", action="store_true", help="not the command line")
    chosen = parser.parse_args(arguments)
    server = own_postgres() if chosen.postgres else chosen.url
    count: int = chosen.commands or (1_000_000 if server else 300_000)
    filling = Filling(count, chosen.parked or count // 200)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        url = server or f"sqlite:///{folder}/pages.db?synchronous=off"
        asyncio.run(migrate(url))
        began = time.perf_counter()
        if server:
            fill_postgres(server, filling)
        else:
            fill_sqlite(f"{folder}/pages.db", filling)
        print(f"{count:,} commands, {filling.parked:,} parked, in {time.perf_counter() - began:.0f} s")
        if chosen.live:
            running.enter_context(traffic(url))
        bad = measure(url, filling, phone=chosen.phone)
        if chosen.only_pages:
            return 1 if bad else 0
        bad += measure_lists(url, filling)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program is compiled once
        bad += measure_programs(url)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
