"""The processes of the router simulation, and what the oracle has to know of them.

`PLANS` says the same as the declarations, written down by hand, since the oracle must not ask these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from commandbus.domain.command import SendRequest
from commandbus.domain.process.declaration import END, Process, StartProcess, Step, WaitFor, step

DOMAIN = "work"
REPLIES = "replies"
SIGNAL = "approved"


def _command(name: str) -> SendRequest[Any]:
    return SendRequest(DOMAIN, name)


def _kept(name: str, declared: Step) -> None:
    """Each success leaves its name in the state."""

    def done(self: Any, state: Any, reply: Any) -> None:
        state["log"].append(name)

    declared.reply(done)


def _undone_by(name: str, declared: Step) -> None:
    def undo(self: Any, state: Any) -> SendRequest[Any]:
        return _command(name)

    undo.__name__ = name
    declared.compensation(undo)


class Order(Process[dict[str, Any]]):
    """A fork, a join, deadlines of steps."""

    reply_to = REPLIES

    @step
    def take(self, state: Any) -> Any:
        return _command("take")

    @step(fork=["pack", "label"], timeout=6)
    def pay(self, state: Any) -> Any:
        return _command("pay")

    @step
    def pack(self, state: Any) -> Any:
        return _command("pack")

    @step(timeout=5)
    def label(self, state: Any) -> Any:
        return _command("label")

    @step(joins=["pack", "label"], then=END)
    def ship(self, state: Any) -> Any:
        return _command("ship")

    for _name in ("take", "pay", "pack", "label", "ship"):
        _kept(_name, locals()[_name])
    for _name in ("take", "pay", "pack", "label"):
        _undone_by(f"un{_name}", locals()[_name])


class Approval(Process[dict[str, Any]]):
    """Signals, a way around a deadline, a deadline of the process."""

    reply_to = REPLIES
    timeout = 40

    @step
    def ask(self, state: Any) -> Any:
        return _command("ask")

    @step(timeout=8, then="book", or_else="remind")
    def first(self, state: Any) -> Any:
        return WaitFor(SIGNAL)

    @first.failure
    def silence(self, state: Any, reply: Any) -> Any:
        return "remind" if reply.error_code == "STEP_TIMEOUT" else None

    @step
    def remind(self, state: Any) -> Any:
        return _command("remind")

    @step(timeout=8)
    def second(self, state: Any) -> Any:
        return WaitFor(SIGNAL)

    @step(then=END)
    def book(self, state: Any) -> Any:
        return _command("book")

    for _name in ("ask", "first", "remind", "second", "book"):
        _kept(_name, locals()[_name])
    _undone_by("unask", ask)
    _undone_by("unremind", remind)


class Trip(Process[dict[str, Any]]):
    """Another process as a step."""

    reply_to = REPLIES
    timeout = 45

    @step
    def hotel(self, state: Any) -> Any:
        return _command("hotel")

    @step
    def order(self, state: Any) -> Any:
        return StartProcess(Order, {"log": []})

    @step(then=END)
    def confirm(self, state: Any) -> Any:
        return _command("confirm")

    for _name in ("hotel", "order", "confirm"):
        _kept(_name, locals()[_name])
    _undone_by("unhotel", hotel)
    _undone_by("unorder", order)


DECLARATIONS: dict[str, type[Process[Any]]] = {
    declaration.process_type: declaration for declaration in (Order, Approval, Trip)
}


@dataclass(frozen=True)
class Plan:
    after: dict[str, tuple[str, ...]]
    """The steps that have to succeed before a command of this name begins."""
    undo: dict[str, str]
    timeouts: dict[str, float]
    last: str


PLANS = {
    "order": Plan(
        {
            "take": (),
            "pay": ("take",),
            "pack": ("pay",),
            "label": ("pay",),
            "ship": ("pack", "label"),
        },
        {"take": "untake", "pay": "unpay", "pack": "unpack", "label": "unlabel"},
        {"pay": 6, "label": 5},
        "ship",
    ),
    "approval": Plan(
        {"ask": (), "remind": ("ask",), "book": ("ask",)},
        {"ask": "unask", "remind": "unremind"},
        {"first": 8, "second": 8},
        "book",
    ),
    "trip": Plan(
        {"hotel": (), "confirm": ("hotel", "order")},
        {"hotel": "unhotel", "order": "unorder"},
        {},
        "confirm",
    ),
}
