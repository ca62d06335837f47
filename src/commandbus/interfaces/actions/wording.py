"""What actions are about, and what they did, in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from commandbus.errors import NotFoundError
from commandbus.interfaces.actions.model import Given
from commandbus.interfaces.cli import text

RETAINED = ("completed", "failed", "canceled")
"""Statuses whose commands are forgotten after a time, as options are named."""


def canceled(given: Given, result: Any) -> str:
    return "asked to stop" if result == "STOP_REQUESTED" else "canceled"


def canceled_batch(given: Given, report: Any) -> str:
    ended = text.plural(report.canceled + report.canceled_parked, "command")
    asked = f"; {report.stop_requested:,} asked to stop" if report.stop_requested else ""
    return f"canceled {ended} of batch {given['batch_id']}{asked}"


def resent(given: Given, result: Any) -> str:
    return "not sent again: its unique key is held" if result.duplicate else "sent again"


def next_run(given: Given, record: Any) -> str:
    """When a schedule sends; a run that is due is sent as soon as a worker looks."""
    if record.next_run is None:
        return f"{given['name']} is disabled"
    age = text.age(record.next_run)
    return f"{given['name']} is enabled; next run {age if age.startswith('in ') else f'due {age} ago'}"


def deleted(given: Given, was_there: bool) -> str:
    if not was_there:
        raise NotFoundError(f"There is no schedule {given['name']!r}.")
    return f"{given['name']} is deleted"


def triggered(given: Given, sent: Any) -> str:
    return (
        f"{given['name']} has sent a command"
        if not sent.duplicate
        else "its last command has not ended"
    )


def which(given: Given) -> str:
    """`worker w-1 w-2`, `all workers of domain shop and host web-1`."""
    wheres = [f" {where} {given[where]}" for where in ("domain", "host") if given.get(where)]
    names = given.get("workers")
    return f"worker {' '.join(names)}" if names else f"all workers of{' and'.join(wheres)}"


def asked(what: str) -> Callable[[Given, Any], str]:
    """What was asked of which workers."""

    def done(given: Given, names: list[str]) -> str:
        shown = ", ".join([*names[:5], *(["…"] if len(names) > 5 else [])])
        return f"{text.plural(len(names), 'worker')} asked to {what.format(**given)}: {shown}"

    return done


def old(given: Given) -> str:
    """`completed more than 7 d ago, failed more than 90 d ago`."""
    kept = [(name, given[name]) for name in RETAINED if name in given]
    return ", ".join(f"{name} more than {text.duration(seconds)} ago" for name, seconds in kept)


def whose(given: Given) -> str:
    """`with data.account=42 and tag=customer-42, in shop, mail`."""
    domains = ", ".join(given.get("domains", ())) or "all domains"
    return f"with {' and '.join(given['subject'])}, in {domains}"


def ended(given: Given, result: Any) -> str:
    return "; ".join(["process {process_id} has ended".format(**given), *result.not_done])


def erased(given: Given, report: Any) -> str:
    return f"{text.plural(report.erased, 'command')} erased, {report.canceled} canceled before"


def not_erased(report: Any) -> list[str]:
    waiting = f"{text.plural(report.waiting, 'command')} not ended; cancel_waiting cancels them first"
    running = f"{text.plural(report.running, 'command')} running; repeat it when they have ended"
    return [waiting] * bool(report.waiting) + [running] * bool(report.running)
