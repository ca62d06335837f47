"""`python -m bench.page RESULTS`: docs/benchmarks.md and its charts, from the results of a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bench import model
from bench.bars import judge
from bench.charts import Bar, Line, bars, lines
from bench.figures import LIMITS, METRICS, Metric, Results, number
from bench.peers.catalogue import SUBJECTS, Subject
from bench.scenarios import CUT_SECONDS, SEND_SECONDS

PAGE = Path("docs/benchmarks.md")
CHARTS = Path("docs/benchmarks")
THROUGHPUT = (
    "bulk_send", "send_1", "send_16", "drain_10", "drain_100", "drain_best", "drain_2",
    "drain_call", "drain_wait", "busy",
)  # fmt: skip
COSTS = (
    "pickup_p50", "pickup_p99", "urgent_p50", "urgent_p99", "idle", "memory", "wal", "send_wal",
    "commits", "dead", "server_cpu", "worker_cpu", "snapshot_rate", "snapshot",
)  # fmt: skip
RATIOS = ("bulk_send", "send_16", "drain_10", "drain_best", "drain_2", "pickup_p50", "memory", "wal")
METHOD_HEADING = "## How it is measured"
VARIANTS_HEADING = "## Other Pythons, and cores of their own"
"""The section that `bench.variants` writes; this page keeps it."""
CHARTED = {
    "drain_best": "Commands carried out per second, one process",
    "drain_10": "Commands carried out per second, concurrency 10",
    "drain_2": "Commands carried out per second, two processes",
    "send_16": "Single sends per second, 16 senders",
    "pickup_p50": "Pick-up latency, median, in milliseconds",
}
BESIDE = {
    "drain_best": ("claim_1000", "limit: claim and delete, SQL"),
    "drain_10": ("claim_10", "limit: the same by tens, SQL"),
    "send_16": ("pgbench_16", "limit: bare INSERT, pgbench"),
    "pickup_p50": ("notify_p50", "limit: NOTIFY and one claim"),
}
"""The limit that belongs beside a chart, and what it is called there."""


def write(results: Results, page: Path = PAGE, charts: Path = CHARTS) -> None:
    charts.mkdir(parents=True, exist_ok=True)
    drawn = draw(results)
    for name, svg in drawn.items():
        (charts / f"{name}.svg").write_text(svg, encoding="utf-8")
    kept = _variants_of(page.read_text(encoding="utf-8")) if page.exists() else ""
    page.write_text(with_variants(text(results, list(drawn)), kept), encoding="utf-8")
    print(f"written: {page} and {len(drawn)} charts in {charts}", file=sys.stderr)


def with_variants(text: str, section: str) -> str:
    """The page with this section in the place of its own."""
    before, heading, rest = text.partition(METHOD_HEADING)
    before = before.partition(VARIANTS_HEADING)[0]
    return "\n\n".join(part for part in (before.rstrip(), section.rstrip(), heading + rest) if part)


def _variants_of(text: str) -> str:
    _, heading, section = text.partition(METHOD_HEADING)[0].partition(VARIANTS_HEADING)
    return heading + section


def draw(results: Results) -> dict[str, str]:
    """Charts by name."""
    found: dict[str, str] = {}
    for name, title in CHARTED.items():
        data = _bars(results, name)
        if data:
            metric = METRICS[name]
            better = "more is better" if metric.more_is_better else "less is better"
            found[name] = bars(title, f"{metric.about}; PostgreSQL, durable; {better}", data)
    growth = results.growth
    for name, key, title, unit in (
        ("backlog", "drain", "Drain per second, by backlog", "commands that wait"),
        ("fleet", "drain", "Drain per second, by processes", "worker processes"),
        ("payload", "drain", "Drain per second, by payload", "bytes of payload"),
    ):
        points = [(point["at"], point[key]) for point in growth.get(name, [])]
        if len(points) > 1:
            note = f"Command Bus, PostgreSQL, concurrency 100, {results.about.get('cores')} cores"
            found[name] = lines(title, note, Line(title, points), unit_x=unit)
    return found


def _bars(results: Results, metric: str) -> list[Bar]:
    """Best first; limits last."""
    kind = METRICS[metric]
    data: list[Bar] = []
    for subject in SUBJECTS:
        value = results.median(subject.name, metric)
        if value is not None and subject.store == "postgres":
            low, high = results.spread(subject.name, metric) or (value, value)
            data.append(Bar(subject.title, value, "ours" if subject.is_ours else "peer", low, high))
    data.sort(key=lambda bar: bar.value, reverse=kind.more_is_better)
    if data and metric in BESIDE:
        name, label = BESIDE[metric]
        if (value := results.median("limits", name)) is not None:
            data.append(Bar(label, value, "limit"))
    return data


def text(results: Results, charts: Sequence[str]) -> str:
    about = results.about
    parts = [
        "<!-- written by `make bench`; change bench/page.py, not this page -->",
        "# Benchmarks",
        "",
        (
            f"One machine, one run, the same work for all: {about.get('cores')} cores, PostgreSQL"
            f" {about.get('postgres')} with durable settings, medians of {about.get('repeat')}"
            " interleaved repetitions, the spread beside them. Absolute figures belong to this"
            " machine; ratios in one run are what counts, and differences under 30 % mean little."
        ),
        "",
        (
            f"Measured on {about.get('when')} at {about.get('revision')}."
            " Newer code may be faster or slower."
        ),
        "",
        *_trial(results),
        *_pictures([name for name in CHARTED if name in charts]),
        *_judgement(results),
        *_tables(results),
        *_ratios(results),
        *_limits(results),
        *_growth(results, charts),
        *model.section(results),
        "",
        *_subjects(results),
        *_missing(results),
        *_method(results),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _trial(results: Results) -> list[str]:
    scale = results.about.get("scale", 1.0)
    if scale == 1:
        return []
    return [f"**A trial with {scale:g} of the amounts: its figures compare nothing.**", ""]


def _pictures(names: Sequence[str]) -> list[str]:
    titles = {**CHARTED, "backlog": "by backlog", "fleet": "by processes", "payload": "by payload"}
    return [line for name in names for line in (f"![{titles[name]}](benchmarks/{name}.svg)", "")]


def _judgement(results: Results) -> list[str]:
    found = ["## What was to be reached", "", "| figure | ours | bar | goal |", "|---|---:|---|---|"]
    for row in judge(results):
        signs = ["✓" if mark.is_reached else "–" for mark in (row.bar, row.goal)]
        found.append(f"| {row.figure} | {row.ours} | {signs[0]} {row.bar} | {signs[1]} {row.goal} |")
    beyond = [
        f"- {row.figure}, {mark.text}: {mark.beyond}."
        for row in judge(results)
        for mark in (row.bar, row.goal)
        if mark.beyond and mark.is_reached is False
    ]
    return [*found, "", *(["Beyond reach, by counts:", "", *beyond, ""] if beyond else [])]


def _tables(results: Results) -> list[str]:
    return [
        "## Throughput",
        "",
        *_table(results, [METRICS[name] for name in THROUGHPUT]),
        "## Latency and cost",
        "",
        *_table(results, [METRICS[name] for name in COSTS]),
    ]


def _table(results: Results, metrics: Sequence[Metric]) -> list[str]:
    shown = [
        metric for metric in metrics if any(metric.name in found for found in results.values.values())
    ]
    found = [
        "| | " + " | ".join(f"{metric.heading} {metric.unit}" for metric in shown) + " |",
        "|---|" + "---:|" * len(shown),
    ]
    for subject in SUBJECTS:
        if subject.name in results.values:
            name = f"**{subject.title}**" if subject.is_ours else subject.title
            cells = [cell(results, subject, metric.name) for metric in shown]
            found.append(f"| {name} | " + " | ".join(cells) + " |")
    return [*found, "", *(f"- {metric.heading}: {metric.about}" for metric in shown), ""]


def cell(results: Results, subject: Subject, metric: str) -> str:
    median, spread = results.median(subject.name, metric), results.spread(subject.name, metric)
    if median is None or spread is None:
        return "–"
    low, high = (number(value) for value in spread)
    return number(median) if low == high else f"{number(median)} <sub>{low}..{high}</sub>"


def _ratios(results: Results) -> list[str]:
    """Ours to each peer: how many times as much, or as little."""
    found = [
        "## Ours beside each",
        "",
        (
            "How many times better Command Bus is, in the same store (below 1: worse); beside Redis,"
            " ours on PostgreSQL."
        ),
        "",
        "| | " + " | ".join(METRICS[name].heading for name in RATIOS) + " |",
        "|---|" + "---:|" * len(RATIOS),
    ]
    ours = {"postgres": "commandbus", "sqlite": "commandbus-sqlite", "redis": "commandbus"}
    for subject in SUBJECTS:
        if subject.is_ours or subject.name not in results.values:
            continue
        cells = []
        for name in RATIOS:
            one, other = results.median(ours[subject.store], name), results.median(subject.name, name)
            if not one or not other:
                cells.append("–")
            else:
                cells.append(f"{(one / other if METRICS[name].more_is_better else other / one):.1f} ×")
        found.append(f"| {subject.title} | " + " | ".join(cells) + " |")
    return [*found, ""]


def _limits(results: Results) -> list[str]:
    found = ["## What this machine allows", "", "| limit | median | spread | |", "|---|---:|---:|---|"]
    for metric in LIMITS.values():
        median, spread = results.median("limits", metric.name), results.spread("limits", metric.name)
        if median is not None and spread is not None:
            low, high = (number(value) for value in spread)
            found.append(
                f"| {metric.heading} | {number(median)} {metric.unit} | {low}..{high} | {metric.about}"
                " |"
            )
    return [*found, ""]


def _growth(results: Results, charts: Sequence[str]) -> list[str]:
    growth = results.growth
    if not growth:
        return []
    found = ["## How cost grows", ""]
    headings = {
        "backlog": ("backlog", ("drain", "send_16", "bulk", "bytes")),
        "fleet": ("processes", ("drain", "server_cpu", "worker_cpu", "commits")),
        "payload": ("payload, bytes", ("drain", "bulk", "send_wal", "wal")),
    }
    titles = {
        "drain": "drain /s", "send_16": "16 single senders /s", "bulk": "bulk send /s",
        "bytes": "bytes of disk per waiting command", "server_cpu": "server CPU µs/command",
        "worker_cpu": "worker CPU µs/command", "commits": "commits per command",
        "send_wal": "WAL of a send, bytes", "wal": "WAL of a drain, bytes",
    }  # fmt: skip
    for name, (heading, keys) in headings.items():
        if not growth.get(name):
            continue
        found += _pictures([name] if name in charts else [])
        found.append(f"| {heading} | " + " | ".join(titles[key] for key in keys) + " |")
        found.append("|---:|" + "---:|" * len(keys))
        found += [
            f"| {point['at']:,.0f} | " + " | ".join(number(point[key]) for key in keys) + " |"
            for point in growth[name]
        ]
        found.append("")
    found += [f"- not measured: {line}" for line in growth.get("failures", [])]
    return found


def _subjects(results: Results) -> list[str]:
    """What each one is, records and promises."""
    versions = results.about.get("versions", {})
    sizes = results.about.get("sizes", {})
    found = [
        "## Who was measured, and what each records",
        "",
        "| | version | drained | |",
        "|---|---|---|---|",
    ]
    for subject in SUBJECTS:
        if subject.name in versions:
            count = sizes.get(subject.name, {})
            drained = ", ".join(f"{n:,} at {level}" for level, n in count.items())
            found.append(f"| {subject.title} | {versions[subject.name]} | {drained} | {subject.note} |")
    return [*found, ""]


def _missing(results: Results) -> list[str]:
    titles = {subject.name: subject.title for subject in SUBJECTS} | {"limits": "limits"}
    lines = [
        f"- {titles.get(name, name)}, {'installation' if scenario == 'install' else scenario}: {reason}"
        for name, reasons in results.failures.items()
        for scenario, reason in reasons.items()
    ]
    left_out = [
        f"- {subject.title}, {scenario}: {reason}"
        for subject in SUBJECTS
        if subject.name in results.values
        for scenario, reason in subject.unmeasured.items()
    ]
    found = ["## What is missing", ""]
    found += ["Failed in this run:", "", *lines, ""] if lines else []
    rarely = {
        subject.title: [
            metric
            for metric, values in results.values.get(subject.name, {}).items()
            if metric != "idle" and len(values) < results.about["repeat"]
        ]
        for subject in SUBJECTS
    }
    if any(rarely.values()):
        found += [
            "Measured less often, for lack of time:",
            "",
            *(f"- {title}: {', '.join(metrics)}" for title, metrics in rarely.items() if metrics),
            "",
        ]
    found += ["Left out on purpose:", "", *left_out, ""] if left_out else []
    return found if len(found) > 2 else []


def _method(results: Results) -> list[str]:
    about = results.about
    settings = ", ".join(f"{name} {value}" for name, value in about.get("settings", {}).items())
    minutes = about.get("seconds", 0) / 60
    return [
        METHOD_HEADING,
        "",
        (
            f"- {about.get('processor')}, {about.get('cores')} cores, {about.get('memory_gb')} GB,"
            f" {about.get('system')}; Python {about.get('python')}, Node {about.get('node')}, SQLite"
            f" {about.get('sqlite')}; {about.get('when')}."
            + (f" Cores of the server and of the rest: {about['cpus']}." if about.get("cpus") else "")
        ),
        (
            f"- PostgreSQL {about.get('postgres')}: {settings}; all else at its defaults, ANALYZE is"
            " left to autovacuum."
        ),
        (
            "- Every peer has an environment of its own and the configuration that its manual"
            " recommends for speed; it runs in processes of its own, over a Unix socket."
        ),
        (
            "- Each repetition of each figure gets a fresh database. A drain counts from the start of"
            " the first handler to the moment when the store holds nothing unfinished; one that takes"
            f" longer than {CUT_SECONDS:.0f} s is cut there and counts what was done. Slow peers drain"
            " fewer commands, see above, so that all of it fits into one run. Payload: 100 bytes of"
            " JSON."
        ),
        f"- Single sends last {SEND_SECONDS} s, beside a worker of ten slots with handlers of 10 ms.",
        (
            "- Urgent commands are sent by another process, one every 20 ms, while a backlog of normal"
            " ones is drained at the best concurrency; of peers by those whose drivers set a priority."
        ),
        "- Statements of an idle worker are counted in the server's log, all workers idling at once.",
        "- Dead rows are the rows that were updated or deleted, whether or not vacuum came by.",
        "- The held snapshot is taken before the drain and kept until its end; up to 100,000 commands.",
        f"- The whole run took {minutes:.0f} minutes.",
        "",
        "## Repeat it",
        "",
        "```bash",
        "$ make bench                    # everything, and this page",
        "$ python -m bench --only commandbus,pgqueuer --scenarios drain,pickup --repeat 1",
        "$ python -m bench --cpus 0,1/2,3 # the server on cores of its own",
        "$ python -m bench --postgres 15 # another server",
        "$ python -m bench.runtimes      # threads beside asyncio, by handler and slots",
        "$ python -m bench.runtimes --bare # the same without a bus",
        "$ python -m bench.urgent --server --bare # an urgent command during a drain",
        "$ python -m bench.single        # where the time of a single send goes",
        "$ python -m bench.lane          # what the queue's row costs a bulk send",
        "$ python -m bench.growth --page # backlog, processes, payload",
        "$ python -m bench.variants --cpus 0/1 --page # other Pythons, cores of their own",
        "$ python -m bench.page bench/results/results.json",
        "$ commandbus bench              # our bus alone, on your own database",
        "```",
        "",
        (
            "Peers are installed below `~/.cache/commandbus-bench`, or where `COMMANDBUS_BENCH_CACHE`"
            " says. The interpreter that runs the benchmark runs our drivers; `bench.variants` gives"
            " each other one an environment there."
        ),
    ]


if __name__ == "__main__":
    write(Results.load(Path(sys.argv[1] if len(sys.argv) > 1 else "bench/results/results.json")))
