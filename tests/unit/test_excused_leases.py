"""Leases that ended because the store was away, and not by what ran under them."""

from __future__ import annotations

import logging
import sys
from contextlib import closing
from pathlib import Path

import pytest

from commandbus.errors import StoreUnavailable
from commandbus.store.outage import Outage
from commandbus.store.process_list import this_process
from commandbus.worker.recorder import FlightRecorder, Header
from commandbus.worker.recordings import BACK_SECONDS, Recordings, witness_of
from tests.unit.test_recorder import claimed


@pytest.mark.skipif(sys.platform == "win32", reason="workers have no recorder there")
def test_no_command_is_the_reason_while_its_worker_asks_without_an_answer(tmp_path: Path) -> None:
    folder = tmp_path / "recorders" / "of a store"
    header = Header("w-1", this_process(), 4)
    with closing(FlightRecorder(folder, header)) as recorder:
        recorder.began(claimed(1))
        recorder.began(claimed(2))
        recorder.ended(claimed(2))
        recorder.excused(100.0)
        loss = Recordings(folder, monotonic=lambda: 99.0).loss_of("w-1")
        assert loss is not None
        assert loss.excused
        assert loss.running == {(7, 1)}
        assert loss.finished == {(7, 2)}
        loss = Recordings(folder, monotonic=lambda: 100.0).loss_of("w-1")
        assert loss is not None
        assert not loss.excused


def test_short_outages_one_after_another_are_not_one_long_one() -> None:
    outage = Outage()
    for _ in range(4):
        outage.failed("claim", StoreUnavailable("refused"), logging.getLogger())
        assert outage.since is not None
        outage.since -= 4.0
        outage.answered()
        began, ended = outage._last
        outage._last = began - 1.0, ended - 1.0
    assert outage.lasted(4.0, BACK_SECONDS)
    assert not outage.lasted(5.0, BACK_SECONDS)


def test_where_no_recorder_can_be_read_an_outage_of_this_process_excuses_others() -> None:
    outage = Outage()
    witness = witness_of(None, outage, 30.0)
    assert witness("w-elsewhere") is None
    outage.failed("claim", StoreUnavailable("refused"), logging.getLogger())
    assert witness("w-elsewhere") is None, "too short to end a lease"
    assert outage.since is not None
    outage.since -= 10.0
    for _ in range(2):  # while it lasts, and when it is over
        loss = witness("w-elsewhere")
        assert loss is not None
        assert (loss.excused, loss.complete) == (True, False)
        outage.answered()
    outage.failed("settle", StoreUnavailable("closed"), logging.getLogger())
    outage.answered()
    assert witness("w-elsewhere") is not None, "it was on its way in the same outage"
    began, ended = outage._last
    outage._last = began - BACK_SECONDS, ended - BACK_SECONDS
    assert witness("w-elsewhere") is None
