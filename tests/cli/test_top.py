"""`top` with keys."""

import io
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from commandbus.interfaces.cli import output, top
from commandbus.interfaces.cli.top import WITHOUT_KEYS, Rates
from commandbus.interfaces.cli.tui import Top
from commandbus.sync import SyncCommandBus
from tests.cli.helpers import park


async def settled(pilot: Pilot[None]) -> None:
    """Everything that was asked of the store is shown."""
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


def rows(pilot: Pilot[None]) -> list[list[str]]:
    table: DataTable[Any] = pilot.app.query_one(DataTable)
    return [[cell.plain for cell in table.get_row_at(n)] for n in range(table.row_count)]


async def test_keys_choose_sort_search_and_open(bus: SyncCommandBus) -> None:
    for number in range(3):
        bus.send("mail", "Send", {"n": number})
    parked = park(bus, message="no such city", data={"password": "hunter2"})
    async with Top(bus, interval=3600).run_test(size=(160, 40)) as pilot:
        await settled(pilot)
        assert [row[0] for row in rows(pilot)] == ["mail", "shop"]
        await pilot.press("s", "r")  # by domain, the last first
        assert [row[0] for row in rows(pilot)] == ["shop", "mail"]
        await pilot.press("slash", *"mail", "enter")
        assert [row[0] for row in rows(pilot)] == ["mail"]
        await pilot.press("escape", "3")
        await settled(pilot)
        assert [row[0] for row in rows(pilot)] == [parked]
        await pilot.press("enter")
        await settled(pilot)
        described = str(pilot.app.screen.query_one("#described", Static).render())
        assert "no such city" in described
        assert "hunter2" not in described
        await pilot.press("escape", "2")
        await settled(pilot)
        assert "BROKEN" in rows(pilot)[0]
        await pilot.press("q")
    assert pilot.app.return_code == 0


async def test_the_cursor_stays_on_its_row(bus: SyncCommandBus) -> None:
    bus.send("b", "Buy")
    bus.send("c", "Buy")
    app = Top(bus, interval=3600)
    async with app.run_test() as pilot:
        await settled(pilot)
        await pilot.press("down")
        bus.send("a", "Buy")
        app.refresh_rows()
        await settled(pilot)
        table: DataTable[Any] = app.query_one(DataTable)
        assert [row[0] for row in rows(pilot)] == ["a", "b", "c"]
        assert table.cursor_row == 2


async def test_an_unreachable_store_is_reported_and_the_last_rows_stay(
    bus: SyncCommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    from commandbus.errors import StoreUnavailable

    bus.send("shop", "Buy")
    app = Top(bus, interval=3600)
    async with app.run_test() as pilot:
        await settled(pilot)

        def away(*_: Any) -> Any:
            raise StoreUnavailable("The store is away.")

        monkeypatch.setattr(SyncCommandBus, "list_domains", away)
        app.refresh_rows()
        await settled(pilot)
        assert [row[0] for row in rows(pilot)] == ["shop"]
        assert "The store is away." in str(app.query_one("#note", Static).render())


@pytest.mark.parametrize(("plain", "said"), [(False, True), (True, False)])
def test_without_textual_it_says_so(plain: bool, said: bool) -> None:
    printed = io.StringIO()
    output.console(printed).print(top.view([], Rates(), "sqlite:///bus.db", 120, plain=plain))
    assert (" ".join(WITHOUT_KEYS.split()) in " ".join(printed.getvalue().split())) is said


async def test_a_refresh_does_not_keep_a_command_from_being_opened(bus: SyncCommandBus) -> None:
    park(bus, message="no such city")
    app = Top(bus, interval=3600)
    async with app.run_test(size=(160, 40)) as pilot:
        await pilot.press("3")
        await settled(pilot)
        table: DataTable[Any] = app.query_one(DataTable)
        app.on_data_table_row_selected(DataTable.RowSelected(table, 0, table.ordered_rows[0].key))
        app.refresh_rows()  # before the command was read
        await settled(pilot)
        assert "no such city" in str(app.screen.query_one("#described", Static).render())
