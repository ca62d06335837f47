"""`top` with keys, in the terminal: domains, parked commands by error, what runs, and workers.

Needs the extra `tui` (textual). Views are lists of the command line, with the same rows and columns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from commandbus.errors import CommandBusError
from commandbus.interfaces.cli import commands, insight, output, queues, text, troubleshooting
from commandbus.interfaces.cli.details import facts, labelled
from commandbus.interfaces.cli.lists import Found, Look, sorted_by
from commandbus.interfaces.cli.output import Column
from commandbus.interfaces.cli.top import Rates, rate_column
from commandbus.interfaces.redaction import Redaction
from commandbus.store.urls import shown_url

if TYPE_CHECKING:
    from commandbus.domain.command import CommandRecord
    from commandbus.sync import SyncCommandBus

SHOWN = 200
"""Rows of a view that comes in pages."""
INTERVALS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class View:
    """A list, and whether its rows are commands, which Enter opens."""

    title: str
    look: Callable[[Look], Found]
    has_commands: bool = False


VIEWS = (
    View("Domains", queues.list_.look),
    View("Parked by error", lambda look: troubleshooting.list_.look(look, groups=True)),
    View("Parked", troubleshooting.list_.look, has_commands=True),
    View("Running", lambda look: commands.list_.look(look, status="running"), has_commands=True),
    View("Workers", insight.list_.look),
)


class Details(ModalScreen[None]):
    """A command: its record, its error, and why it is not running."""

    BINDINGS: ClassVar[list[Any]] = [Binding("escape,q,enter", "dismiss", "Back")]
    CSS = """
    Details { align: center middle; }
    Details > VerticalScroll { width: 90%; height: 90%; border: round $primary; padding: 0 1; }
    """

    def __init__(self, described: Text) -> None:
        super().__init__()
        self._described = described

    def compose(self) -> ComposeResult:
        yield VerticalScroll(Static(self._described, id="described"))
        yield Footer()


class Top(App[None]):
    """The live view. It reads only; its keys choose, sort and search what is shown."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: 1; }
    #note { height: auto; color: $text-muted; }
    #search { display: none; dock: bottom; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding("q", "quit", "Quit", priority=True),
        Binding("ctrl+c", "quit", show=False, priority=True),
        *(Binding(str(n), f"view({n - 1})", view.title) for n, view in enumerate(VIEWS, 1)),
        Binding("s", "sort", "Sort"),
        Binding("r", "reverse", "Reverse"),
        Binding("slash", "search", "Search"),
        Binding("space", "freeze", "Freeze"),
        Binding("plus", "pace(1)", "Slower"),
        Binding("minus", "pace(-1)", "Faster"),
        Binding("escape", "clear", show=False),
    ]

    def __init__(self, bus: SyncCommandBus, interval: float) -> None:
        super().__init__()
        self._bus, self._interval, self._rates = bus, interval, Rates()
        self._view, self._order, self._descending = VIEWS[0], "", False
        self._frozen, self._wanted, self._problem = False, "", ""
        self._found: Found | None = None
        self._shown: list[Any] = []

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Static(id="note")
        yield Input(placeholder="show rows with …", id="search")
        yield Footer()

    def on_mount(self) -> None:
        self._timer = self.set_interval(self._interval, self.refresh_rows)
        self.query_one(DataTable).focus()
        self.refresh_rows()

    def refresh_rows(self, force: bool = False) -> None:
        """Read again, in a thread: a slow store must not hold up the keys."""
        if force or not self._frozen:
            view = self._view
            self.run_worker(lambda: self._read(view), thread=True, exclusive=True)

    def _read(self, view: View) -> None:
        found, problem = None, ""
        try:
            found = view.look(Look(self._bus, limit=SHOWN))
        except CommandBusError as error:
            problem = text.line(error)
        self.call_from_thread(self._take, view, found, problem)

    def _take(self, view: View, found: Found | None, problem: str) -> None:
        if view is not self._view:
            return
        self._problem = problem
        if found is not None:
            if view is VIEWS[0]:
                self._rates.add(list(found.rows), time.monotonic())
                first, *rest = found.columns
                found = replace(found, columns=[first, rate_column(self._rates), *rest])
            self._found = found
        self._draw()

    def _draw(self) -> None:
        table, found = self.query_one(DataTable), self._found
        if found is not None:
            by = f"{'-' if self._descending else ''}{self._order}"
            found = sorted_by(found, by) if self._order else found
            columns = [column for column in found.columns if not column.pipe]
            known = _key_of(columns)
            at = self._row_key(table)
            table.clear(columns=True)
            for column in columns:
                table.add_column(Text(column.name.upper()), key=column.name)
            self._shown = []
            for row in found.rows:
                cells = [_cell(column, row) for column in columns]
                if any(self._wanted in cell.plain.lower() for cell in cells):
                    table.add_row(*cells, key=f"{known(row)} {len(self._shown)}")
                    self._shown.append(row)
            keys = [known(row) for row in self._shown]
            if at in keys:
                table.move_cursor(row=keys.index(at), animate=False)
        self._tell(found)

    def _row_key(self, table: DataTable[Any]) -> str | None:
        if not 0 <= table.cursor_row < len(self._shown) or self._found is None:
            return None
        columns = [column for column in self._found.columns if not column.pipe]
        return _key_of(columns)(self._shown[table.cursor_row])

    def _tell(self, found: Found | None) -> None:
        state = "frozen" if self._frozen else f"every {self._interval:g} s"
        order = f", by {'-' if self._descending else ''}{self._order}" if self._order else ""
        search = f", with {self._wanted!r}" if self._wanted else ""
        now = text.moment(text.after_now(0))[11:19]
        words = f"   {text.line(shown_url(self._bus.url))}   {now} UTC, {state}{order}{search}"
        self.query_one("#head", Static).update(
            Text.assemble((self._view.title, "bold"), (words, "bright_black"))
        )
        notes = [self._problem] if self._problem else []
        if found is not None:
            notes += [] if found.rows else [found.empty]
            notes += [note for note in found.notes if "--" not in note or "sorted" in note]
        self.query_one("#note", Static).update(Text("\n".join(notes)))

    def action_view(self, number: int) -> None:
        self._view, self._found, self._order = VIEWS[number], None, ""
        self.query_one(DataTable).clear(columns=True)
        self._shown = []
        self.refresh_rows(force=True)

    def action_sort(self) -> None:
        """By the next column, and after the last one as the store has it."""
        if self._found is None:
            return
        names = ["", *(column.name.lower() for column in self._found.columns if not column.pipe)]
        at = names.index(self._order) if self._order in names else 0
        self._order = names[(at + 1) % len(names)]
        self._draw()

    def action_reverse(self) -> None:
        self._descending = not self._descending
        self._draw()

    def action_freeze(self) -> None:
        self._frozen = not self._frozen
        self._draw()

    def action_pace(self, step: int) -> None:
        slower = [one for one in INTERVALS if one > self._interval]
        faster = [one for one in INTERVALS if one < self._interval]
        near = slower[:1] if step > 0 else faster[-1:]
        self._interval = near[0] if near else self._interval
        self._timer.stop()
        self._timer = self.set_interval(self._interval, self.refresh_rows)
        self._draw()

    def action_search(self) -> None:
        field = self.query_one("#search", Input)
        field.styles.display = "block"
        field.focus()

    def action_clear(self) -> None:
        field = self.query_one("#search", Input)
        field.value = ""
        field.styles.display = "none"
        self.query_one(DataTable).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._wanted = event.value.lower()
        self._draw()

    def on_input_submitted(self) -> None:
        self.query_one("#search", Input).styles.display = "none"
        self.query_one(DataTable).focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if self._view.has_commands and 0 <= event.cursor_row < len(self._shown):
            record = self._shown[event.cursor_row]
            # In a group of its own: a refresh is exclusive, and would cancel it.
            self.run_worker(lambda: self._open(record), thread=True, group="open")

    def _open(self, record: CommandRecord) -> None:
        try:
            described = _described(self._bus, record)
        except CommandBusError as error:
            described = Text(text.line(error), "red")
        self.call_from_thread(self.push_screen, Details(described))


def _cell(column: Column, row: Any) -> Text:
    value = (column.show or column.value)(row)
    return value if isinstance(value, Text) else Text(text.line(value), column.style)


def _key_of(columns: Sequence[Column]) -> Callable[[Any], str]:
    """What names a row, so that the cursor stays on it: the columns that one copies."""
    named = [column for column in columns if column.keep] or columns[:1]
    return lambda row: " ".join(str(column.value(row)) for column in named)


def _described(bus: SyncCommandBus, record: CommandRecord) -> Text:
    shown = Redaction().record(record)
    lines = [
        Text.assemble(
            (text.line(f"{shown.domain}/{shown.command_type}"), "bold"),
            "  ",
            output.status(shown.status),
        ),
        *(labelled(label, value) for label, value in facts(shown)),
        labelled("data", text.compact_json(shown.data)),
    ]
    if shown.error is not None:
        lines.append(labelled("error", f"{shown.error.code}: {shown.error.message}"))
    reasons = bus.why(record.command_id, domain=record.domain).reasons
    lines += [labelled("why" if not n else "", one.text) for n, one in enumerate(reasons)]
    return Text("\n").join(lines)
