"""The record of what operators did, a page at a time."""

import pytest

from commandbus.errors import InvalidArgumentError
from commandbus.sync import SyncCommandBus


def test_pages_of_actions_have_each_action_once_and_the_newest_first() -> None:
    with SyncCommandBus("memory://") as bus:
        for number in range(5):
            bus.acting("ann").pause(f"domain{number}")
        subjects: list[str] = []
        after, pages = None, 0
        while True:
            page = bus.list_actions(limit=2, after=after)
            subjects += [action.subject for action in page]
            pages += 1
            if (after := page.next) is None:
                break
    assert subjects == [f"domain{number}" for number in reversed(range(5))]
    assert pages == 3


def test_a_wrong_argument_is_named() -> None:
    with SyncCommandBus("memory://") as bus:
        with pytest.raises(InvalidArgumentError, match=r"^action "):
            bus.list_actions(action=5)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match=r"^after "):
            bus.list_actions(after=5)  # type: ignore[arg-type]
