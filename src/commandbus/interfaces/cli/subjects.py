"""The subjects of actions on the command line: found by what was typed, and described."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from commandbus.interfaces.actions.model import Action, Given, Many
from commandbus.interfaces.cli import batches, breakers, commands, processes, queues, schedules, text

if TYPE_CHECKING:
    from commandbus.sync import SyncCommandBus


def find(bus: SyncCommandBus, action: Action, given: Given) -> tuple[Given, str]:
    """The values with the keys of the subject in full, and its description. Raises an error with exit
    code 7 when there is none."""
    one: Any
    match action.subject.noun:
        case "command":
            one = commands.find(bus, given["command_id"], given.get("domain"))
            what = f"{one.domain}/{one.command_id}, which is {one.status}"
        case "domain":
            one = queues.known(bus, given["domain"])
            ended = text.plural(one.completed + one.failed + one.canceled, "record")
            alive = text.plural(one.depth + one.running + one.parked, "live command")
            what = f"{alive} and {ended} of {one.domain!r}"
        case "schedule":
            one = schedules.find(bus, given["name"]).schedule
            sends = f"{one.domain}/{one.command_type} ({schedules.when(one)})"
            return given, f"{one.name}, which sends {sends}"
        case "breaker":
            one = breakers.find(bus, given["target"])
            what = f"the breaker of {one.target}"
        case "batch":
            one = batches.find(bus, given["batch_id"])
            what = f"{text.plural(one.remaining, 'command')} of batch {one.batch_id}"
        case "process":
            one = processes.find(bus, given["process_id"])
            what = f"{one.process_type} {one.process_id}, which is {one.status}"
        case _:
            return given, describe(action, given)
    return given | {key.name: getattr(one, key.name) for key in action.subject.keys}, what


def payload(bus: SyncCommandBus, action: Action, given: Given) -> Any:
    """The payload that an action may edit: that of a schedule; commands have theirs at hand."""
    is_edited = action.subject.noun == "schedule" and action.exists == "must"
    return schedules.find(bus, given["name"]).schedule.data if is_edited else None


def describe(action: Action, given: Given) -> str:
    """What it is about in words; else the keys, or where there are none the parameters."""
    if action.meant is not None:
        return action.meant(given)
    keys = [str(given[key.name]) for key in action.subject.keys if key.name in given]
    known = [f"{p.name} {given[p.name]}" for p in action.params if p.name in given]
    return " ".join(keys) or ", ".join(known)


def examples(bus: SyncCommandBus, many: Many, given: Given, seen: Any) -> tuple[Sequence[Any], Any]:
    """What a preview shows of many commands: parked ones by how they failed, or the newest."""
    if not many.everything:
        return seen.examples, commands.COLUMNS
    from commandbus.interfaces.cli.troubleshooting import GROUP_COLUMNS, Selection
    from commandbus.runtimes.threads.bus import SyncTroubleshootingQueue

    chosen = Selection(*(given.get(name) for name in ("domain", "command_type", "error_code", "group")))
    return chosen.groups(SyncTroubleshootingQueue(bus)), GROUP_COLUMNS
