"""What the operating system's list of processes says about one of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from commandbus.domain.process_identity import ProcessIdentity
from commandbus.store.process_list import is_seen_alive, is_seen_stopped, this_process


def test_nothing_is_known_of_a_process_of_another_machine() -> None:
    far = ProcessIdentity(1, 1, "another boot", "another namespace", "another host")
    assert is_seen_alive(far) is None
    assert is_seen_stopped(far) is False


def test_a_process_differs_from_a_later_one_with_its_number() -> None:
    here = this_process()
    if not here.started:
        pytest.skip("this machine has no list of processes")
    earlier = msgspec.structs.replace(here, started=here.started - 1)
    assert (is_seen_alive(here), is_seen_alive(earlier)) == (True, False)
    assert (is_seen_stopped(here), is_seen_stopped(earlier)) == (False, False)


def test_a_process_that_is_not_in_the_list_is_dead_if_the_list_names_those_of_all_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = this_process()
    if not here.started:
        pytest.skip("this machine has no list of processes")
    monkeypatch.setattr("commandbus.store.process_list.PROC", tmp_path)
    assert is_seen_alive(here) is None
    (tmp_path / "1").mkdir()
    assert is_seen_alive(here) is False
