"""The benchmark's own arithmetic, and the page that it writes."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench import model, page
from bench.bars import judge, missed
from bench.charts import Bar, Line, bars, lines
from bench.figures import METRICS, Results, number, percentile
from bench.idle import count_lines
from bench.peers.catalogue import SUBJECTS, subjects
from bench.peers.environments import DRIVERS, NotInstalled, environment
from bench.scenarios import SCENARIOS, Drained


def results() -> Results:
    found = Results(
        about={"cores": 2, "repeat": 3, "versions": {"commandbus": "1.0", "pgqueuer": "1.6"}}
    )
    costs = dict.fromkeys(("send_cpu", "server_cpu", "worker_cpu", "send_wal", "wal", "commits"), 20.0)
    for best in (60_000.0, 50_000.0, 40_000.0):
        found.add("commandbus", {"drain_best": best, "memory": 70.0, "idle": 0.02, **costs})
        found.add("pgqueuer", {"drain_best": best / 4, "idle": 0.2})
        found.add("graphile-worker-batched", {"drain_best": best / 1.2})
    found.add("limits", {"claim_1000": 60_000.0})
    found.fail("celery", "install", "no redis-server here")
    found.growth = {
        "connections": 3.0,
        "payload": [
            {"at": 100, "drain": 50_000.0, "bulk": 40_000.0, "send_wal": 480.0, "wal": 330.0},
            {"at": 65_536, "drain": 5_000.0, "bulk": 900.0, "send_wal": 70_000.0, "wal": 330.0},
        ],
    }
    return found


def test_the_median_and_the_spread_are_those_of_all_repetitions() -> None:
    found = results()
    assert found.median("commandbus", "drain_best") == 50_000
    assert found.spread("commandbus", "drain_best") == (40_000, 60_000)
    assert found.median("commandbus", "busy") is None


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "results.json"
    results().save(file)
    assert Results.load(file) == results()


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0.0"), (0.0234, "0.023"), (2.34, "2.3"), (23.4, "23"), (2_340, "2.3k"), (23_400, "23k"),
     (2_340_000, "2.3M")],
)  # fmt: skip
def test_a_number_has_two_or_three_digits(value: float, shown: str) -> None:
    assert number(value) == shown


def test_the_slowest_of_a_hundred_is_the_last() -> None:
    values = [float(n) for n in range(100)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile([1.0], 0.99) == 1


def test_a_drain_that_slows_down_shows_in_its_last_tenth() -> None:
    marks = [(0.1 * n, 10 * n) for n in range(1, 10)] + [(1.9, 100)]
    drained = Drained(100, marks, first=0.0, ended=2.0)
    assert drained.rate == 50
    assert drained.last_to_first_tenth == pytest.approx(0.1)


def test_a_drain_that_was_cut_counts_what_was_done() -> None:
    drained = Drained(1_000, [(1.0, 100), (2.0, 300)], first=0.0, ended=2.0)
    assert drained.done == 300
    assert drained.rate == 150
    assert drained.at(1.0) == 2.0


def test_statements_are_counted_by_database() -> None:
    log = (
        "one|LOG:  duration: 0.1 ms  statement: BEGIN\n"
        "one|LOG:  duration: 0.1 ms  parse <unnamed>: select 1\n"
        "one|LOG:  duration: 0.1 ms  execute <unnamed>: select 1\n"
        "two|LOG:  duration: 0.1 ms  statement: select\n\tfrom somewhere\n"
        "|LOG:  checkpoint starting: time\n"
    )
    assert count_lines(log) == {"one": 2, "two": 1}


def test_every_bar_is_judged_and_what_is_missing_is_not_reached() -> None:
    rows = {row.figure: row for row in judge(results())}
    assert len(rows) == 27
    drain = rows["drain, one process, best concurrency"]
    assert drain.bar.found == pytest.approx(4)
    assert drain.bar.is_reached
    assert drain.goal.found == pytest.approx(1.2)
    assert drain.goal.is_reached is False
    memory = rows["worker memory"]
    assert (memory.bar.is_reached, memory.goal.is_reached) == (True, False)
    assert rows["drain on SQLite"].bar.is_reached is None
    assert "not measured" in str(rows["drain on SQLite"].bar)


def test_a_bar_that_was_measured_and_not_reached_fails_the_run() -> None:
    assert missed(results()) == []
    slow = results()
    slow.add("commandbus", {"pickup_p50": 12.0})
    assert missed(slow) == [
        "pick-up latency between processes, absolute: p50 ≤ 10 ms: 12 ms, not reached"
    ]


def test_the_page_says_why_a_goal_is_beyond_reach_where_it_was_missed(tmp_path: Path) -> None:
    def written(rate: float) -> str:
        found = results()
        found.add("commandbus-sqlite", {"drain_best": rate})
        found.add("limits", {"sqlite_rows": 400_000.0})
        page.write(found, tmp_path / "benchmarks.md", tmp_path / "benchmarks")
        return (tmp_path / "benchmarks.md").read_text(encoding="utf-8")

    assert "- drain on SQLite, ≥ half of the raw batch rate: the Python of a command" in written(60_000)
    assert "Beyond reach" not in written(300_000)


def test_a_goal_is_beyond_reach_only_where_the_machine_itself_stays_below_it() -> None:
    def written(share: float) -> str:
        found = results()
        found.add("commandbus", {"busy": 92.0})
        found.add("limits", {"wait_share": share})
        return page.text(found, [])

    assert "≥ 97 %: 100 tasks that only wait, without a bus, reach 95 % on this loop." in written(94.7)
    assert "Beyond reach" not in written(98.0)


def test_costs_are_judged_beside_the_best_peer() -> None:
    found = results()
    assert {row.figure: row for row in judge(found)}["WAL of a drained command"].bar.found is None
    found.add("pgqueuer", {"wal": 16.0})
    assert "WAL of a drained command: ≤ every peer: 1.25 ×, not reached" in missed(found)


def test_the_page_says_what_was_measured_and_what_was_not(tmp_path: Path) -> None:
    file, charts = tmp_path / "benchmarks.md", tmp_path / "benchmarks"
    page.write(results(), file, charts)
    written = file.read_text(encoding="utf-8")
    assert "| **Command Bus, asyncio** | 50k <sub>40k..60k</sub> |" in written
    assert "4.00 ×, reached" in written
    assert "1.20 ×, not reached" in written
    assert "Celery, Redis, installation: no redis-server here" in written
    assert "| PgQueuer | 1.6 |" in written
    assert "make bench" in written
    for name in ("drain_best", "payload"):
        assert f"benchmarks/{name}.svg" in written
        assert (charts / f"{name}.svg").exists()


def test_the_page_of_a_run_without_figures_is_written_too() -> None:
    assert "not measured" in page.text(Results(), [])


def test_the_model_follows_from_the_costs_of_a_command() -> None:
    found = model.cost(results())
    assert found is not None
    assert found.server_us == 40
    assert found.wal_megabytes(1_000_000) == 40
    assert found.server_rate(2) == pytest.approx(2 * 0.7 * 25_000)
    assert model.cost(Results()) is None


def test_charts_are_svg_with_every_figure_in_them() -> None:
    drawn = bars(
        "A < B", "note", [Bar("ours & theirs", 50_000, "ours", 40_000, 60_000), Bar("peer", 0)]
    )
    texts = [element.text for element in ET.fromstring(drawn).iter() if element.text]
    assert "A < B" in texts
    assert "ours & theirs" in texts
    assert "50k" in texts
    drawn = lines("growth", "note", Line("growth", [(1_000, 5.0), (1_000_000, 50.0)]), unit_x="backlog")
    texts = [element.text for element in ET.fromstring(drawn).iter() if element.text]
    assert {"5.0", "50", "1,000,000", "backlog"} <= set(texts)
    assert "prefers-color-scheme: dark" in drawn


def test_every_subject_has_a_driver_and_names_only_scenarios_that_exist() -> None:
    assert len({subject.name for subject in SUBJECTS}) == len(SUBJECTS)
    for subject in SUBJECTS:
        assert (DRIVERS / subject.driver).exists()
        assert set(subject.unmeasured) <= {*SCENARIOS, "idle"}
        assert subject.is_ours or subject.packages
        assert subject.commands(100) <= 50_000
    assert set(METRICS) >= {*page.THROUGHPUT, *page.COSTS, *page.RATIOS}


def test_subjects_are_chosen_by_name() -> None:
    assert [one.name for one in subjects(["pgqueuer"])] == ["pgqueuer"]
    assert {one.name for one in subjects(["graphile*"])} == {
        "graphile-worker",
        "graphile-worker-batched",
    }
    with pytest.raises(SystemExit, match="no subject nobody"):
        subjects(["nobody"])


def test_a_peer_that_cannot_be_installed_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMANDBUS_BENCH_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    (subject,) = subjects(["pg-boss"])
    with pytest.raises(NotInstalled, match=r"needs Node\.js"):
        environment(subject)
