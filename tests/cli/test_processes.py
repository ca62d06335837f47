"""`process`: sagas on the command line."""

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4
from xml.etree import ElementTree as ET

import pytest

from commandbus import BusinessRuleException, PermanentCommandError
from commandbus.sync import SyncCommandBus, SyncProcessManager, SyncWorker
from commandbus.testing.harness import Configuration
from commandbus.testing.sagas import DOMAIN, Approved, BookTrip, Sagas, Trip
from tests.cli.helpers import PROGRAM, Cli, clean_environment

APP = "commandbus.testing.sagas"


@pytest.fixture
def sagas(url: str) -> Iterator[Sagas]:
    harness = Configuration("sqlite", url).open("threads")
    yield Sagas(harness, BookTrip, Approved)
    harness.close()


def park(sagas: Sagas) -> str:
    process_id = sagas.start(Trip(to="Oslo"))
    sagas.done("book_hotel", PermanentCommandError("BROKEN", "it is broken"))
    return str(process_id)


def test_list_and_its_filters(cli: Cli, sagas: Sagas) -> None:
    waiting = park(sagas)
    running = str(sagas.start())
    assert [row[0] for row in cli("process", "list").rows] == [running, waiting]
    rows = cli("process", "list", "--status", "troubleshooting").rows
    assert [row[:4] for row in rows] == [[waiting, "book_trip", "WAITING_FOR_TROUBLESHOOTING", "hotel"]]
    assert cli("process", "list", "--type", "other").rows == []
    page = cli("process", "list", "-n", "1", "--json").document
    assert [one["process_id"] for one in page["processes"]] == [running]
    rest = cli("process", "list", "-n", "1", "--after", page["next"], "--json").document
    assert [one["process_id"] for one in rest["processes"]] == [waiting]
    assert "Unknown status" in cli("process", "list", "-s", "lost", code=2).err


def test_show_says_what_it_waits_for(cli: Cli, sagas: Sagas) -> None:
    process_id = park(sagas)
    ran = cli("process", "show", process_id)
    assert "book_trip  troubleshooting" in ran.out
    assert '"to": "Oslo"' in ran.out or '"to":"Oslo"' in ran.out
    assert "PARKED" in ran.out
    assert "commandbus tsq show" in ran.err
    document = cli("process", "show", process_id, "--json").document
    assert (document["status"], document["steps"][0]["parked"]) == ("WAITING_FOR_TROUBLESHOOTING", True)
    assert "no process" in cli("process", "show", str(uuid4()), code=7).err
    assert "is not the id of a process" in cli("process", "show", "nonsense", code=2).err


def test_show_of_an_ended_one_has_its_error(cli: Cli, sagas: Sagas) -> None:
    process_id = sagas.start()
    sagas.done("book_hotel", BusinessRuleException("NO_ROOM", "full"))
    out = cli("process", "show", str(process_id)).out
    assert "NO_ROOM in hotel: full" in out
    assert "failed" in out


def test_audit_is_in_order(cli: Cli, sagas: Sagas) -> None:
    process_id = park(sagas)
    events = [row[1] for row in cli("process", "audit", process_id).rows]
    assert events == ["STARTED", "STEP_SENT", "STEP_PARKED"]
    assert len(cli("process", "audit", process_id, "--json").document["events"]) == 3
    cli("process", "audit", str(uuid4()), code=7)


def test_retry_lets_it_go_on(cli: Cli, sagas: Sagas) -> None:
    process_id = park(sagas)
    cli("process", "retry", process_id, "--operator", "ann")
    assert cli("process", "list", "-s", "running").rows[0][0] == process_id
    assert "waits for no operator" in cli("process", "retry", process_id, code=1).err


def test_cancel_asks_first(cli: Cli, sagas: Sagas) -> None:
    process_id = park(sagas)
    assert "--yes" in cli("process", "cancel", process_id, code=2).err
    assert "would cancel" in cli("process", "cancel", process_id, "--dry-run").err
    cli("process", "cancel", process_id, "--yes", "--reason", "ill")
    sagas.route()
    document = cli("process", "show", process_id, "--json").document
    assert (document["status"], document["error"]["message"]) == ("CANCELED", "ill")
    assert "final" in cli("process", "cancel", process_id, "--yes", code=1).err


def test_end_says_what_was_not_undone(cli: Cli, sagas: Sagas) -> None:
    process_id = str(sagas.start())
    sagas.done("book_hotel", "Grand")
    told = cli("process", "end", process_id, "--yes", "--reason", "its program is gone").err
    assert "completed steps were not undone: hotel" in told
    assert sagas.waiting() == []
    document = cli("process", "show", process_id, "--json").document
    assert (document["status"], document["error"]["code"]) == ("FAILED", "ENDED_BY_OPERATOR")


def test_skip_lets_a_failed_compensation_be(cli: Cli, sagas: Sagas) -> None:
    process_id = sagas.start()
    sagas.done("book_hotel", "Grand")
    sagas.done("book_car", BusinessRuleException("NO"))
    sagas.done("cancel_hotel", BusinessRuleException("LATE", "too late"))
    told = cli("process", "show", str(process_id)).err
    assert "cancel_hotel was refused: LATE: too late" in told
    assert "process retry" in told
    assert "process skip" in told
    tried = cli("process", "skip", str(process_id), "--reason", "by phone", "--dry-run")
    assert "WAITING_FOR_TROUBLESHOOTING" in tried.err
    cli("process", "skip", str(process_id), "--reason", "by phone")
    sagas.route()
    assert sagas.status(process_id) == "COMPENSATED"


def test_signal_reaches_it(cli: Cli, bus: SyncCommandBus, sagas: Sagas) -> None:
    process_id = SyncProcessManager(bus, Approved).start(Trip()).process_id
    sagas.done("ask")
    cli("process", "signal", str(process_id), "approved", '{"by": "ann"}')
    sagas.route()
    assert sagas.get(process_id).current_steps == ["book"]
    assert "JSON" in cli("process", "signal", str(process_id), "approved", "{", code=2).err


def test_draw_as_mermaid_and_svg(cli: Cli, sagas: Sagas) -> None:
    out = cli("process", "draw", f"{APP}:BookTrip").out
    assert out.startswith("flowchart TD\n    start([book_trip]) --> hotel")
    assert "    hotel --> car" in out
    assert "    class hotel idle" in out
    process_id = park(sagas)
    coloured = cli("process", "draw", APP, "--id", process_id, "--format", "svg").out
    root = ET.fromstring(coloured)
    boxes = {g.findtext("{*}text"): g.get("class") for g in root.iter("{http://www.w3.org/2000/svg}g")}
    assert boxes["hotel"] == "parked"
    assert boxes["car"] == "idle"
    assert cli("process", "draw", f"{APP}:BookTrip", "--json").document["process_type"] == "book_trip"
    assert "name one" in cli("process", "draw", APP, code=2).err
    assert "mermaid or svg" in cli("process", "draw", f"{APP}:BookTrip", "-f", "png", code=2).err
    assert "declares no process" in cli("process", "draw", f"{APP}:Trip", code=3).err


@pytest.mark.parametrize("options", [[], ["--threads"]])
def test_route_serves_until_a_signal(
    bus: SyncCommandBus, url: str, tmp_path: Path, options: list[str]
) -> None:
    process_id = SyncProcessManager(bus, BookTrip).start(Trip())
    command = [*PROGRAM, "process", "route", f"{APP}:BookTrip", "--url", url, *options]
    with subprocess.Popen(
        command, cwd=tmp_path, env=clean_environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert "serves book_trip" in process.stderr.readline()
            worker = SyncWorker(bus, DOMAIN)
            for _ in range(3):
                deadline = time.monotonic() + 20
                while not (received := worker.receive()):
                    assert time.monotonic() < deadline, "the router sent nothing"
                    time.sleep(0.01)
                worker.complete(received[0])
            assert bus.wait_process(process_id, 20).status == "COMPLETED"
            process.send_signal(signal.SIGTERM)
            rest = process.stderr.read()
            assert process.wait(20) == 0
            assert "has stopped after 3 replies" in rest
        finally:
            process.kill()
