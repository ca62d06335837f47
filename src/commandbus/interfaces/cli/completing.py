"""Shell completion of values: read from the store, and empty where it does not answer in time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from commandbus.domain.command import CommandRecord
    from commandbus.interfaces.actions.model import Action
    from commandbus.sync import SyncCommandBus

NEWEST = 200
"""Types are those of so many commands."""
SHOWN = 50
"""So many ids are offered, the newest."""
SECONDS = 0.2
"""A store that takes longer has no answer: someone waits at the keyboard."""

Offer = str | tuple[str, str]
"""A value, or a value and what zsh and fish say about it."""
Complete = Callable[[Any, str], list[Offer]]
Kind = Literal["command", "batch", "process"]


class _Whole(str):
    """An id to be put in the place of its digits. typer leaves out values that do not begin as was
    typed; bash takes the value for the word, zsh and fish leave the word as it is."""

    __slots__ = ()

    def startswith(self, *_: Any) -> bool:
        return True


def _offered(ask: Callable[[SyncCommandBus, Any, str], Iterable[Offer]]) -> Complete:
    def complete(ctx: Any, incomplete: str) -> list[Offer]:
        from commandbus.interfaces.cli import target

        given = ctx.find_root().params | {k: v for k, v in ctx.params.items() if v is not None}
        target.chosen_context = given.get("context")
        found: list[Offer] = []

        def look() -> None:
            try:
                with target.opened(given.get("url")) as bus:
                    found.extend(ask(bus, ctx, incomplete))
            except BaseException:  # a shell that completes must not print errors into its line
                return

        # Imported before the clock starts: how long that takes does not depend on the store.
        import commandbus.runtimes.threads.bus  # noqa: F401

        asking = threading.Thread(target=look, name="commandbus-completion", daemon=True)
        asking.start()
        asking.join(SECONDS)
        return [] if asking.is_alive() else found

    return complete


def _names(ask: Callable[[SyncCommandBus, Any], Iterable[str]]) -> Complete:
    """Names that begin as was typed."""
    return _offered(
        lambda bus, ctx, incomplete: sorted(
            {name for name in ask(bus, ctx) if name.startswith(incomplete)}
        )
    )


def _types(bus: SyncCommandBus, ctx: Any) -> Iterable[str]:
    found = bus.query_commands(domain=ctx.params.get("domain"), limit=NEWEST)
    return {record.command_type for record in found}


def choice(*known: str) -> Callable[[str], list[str]]:
    """Words that are always the same."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in known if word.startswith(incomplete.lower())]

    return complete


statuses = choice("pending", "running", "completed", "failed", "canceled", "parked")
batch_statuses = choice("pending", "in_progress", "completed", "completed_with_failures")
process_statuses = choice(
    "running", "compensating", "troubleshooting", "completed", "compensated", "failed", "canceled"
)
domains = _names(lambda bus, ctx: bus.list_domains())
types = _names(_types)
schedules = _names(lambda bus, ctx: [record.schedule.name for record in bus.list_schedules()])
breakers = _names(lambda bus, ctx: [breaker.target for breaker in bus.list_breakers()])
workers = _names(lambda bus, ctx: [worker.name for worker in bus.list_workers()])
process_types = _names(lambda bus, ctx: [one.process_type for one in bus.list_processes(limit=NEWEST)])


def contexts(incomplete: str) -> list[str]:
    from commandbus.errors import CommandBusError
    from commandbus.interfaces.cli.context_file import Contexts

    try:
        return [name for name, _ in Contexts.load().sorted() if name.startswith(incomplete)]
    except CommandBusError:  # as above: no error into the line of a shell
        return []


def _commands(bus: SyncCommandBus, ctx: Any, fitting: tuple[str, ...]) -> Iterable[Offer]:
    status = fitting[0] if len(fitting) == 1 else None
    for record in bus.query_commands(domain=ctx.params.get("domain"), status=status, limit=NEWEST):
        if _is_own(record) and (not fitting or record.status in fitting):
            described = f"{record.domain}/{record.command_type} {record.status}"
            yield str(record.command_id), described


def _is_own(record: CommandRecord) -> bool:
    from commandbus.interfaces.search import is_own

    return is_own(record)


def _batches(bus: SyncCommandBus) -> Iterable[Offer]:
    for batch in bus.list_batches(limit=NEWEST):
        yield str(batch.batch_id), f"{batch.name or ', '.join(batch.domains)} {batch.status}"


def _processes(bus: SyncCommandBus) -> Iterable[Offer]:
    for record in bus.list_processes(limit=NEWEST):
        yield str(record.process_id), f"{record.process_type} {record.status}"


def ids(*kinds: Kind, fitting: tuple[str, ...] = ()) -> Complete:
    """Ids of these kinds, the newest that begin as was typed; else the one that has these digits, as a
    short id does. Of commands, those with a status that is `fitting`."""

    def ask(bus: SyncCommandBus, ctx: Any, incomplete: str) -> Iterable[Offer]:
        from commandbus.domain.ids import as_id_parts

        recent: list[Offer] = []
        if "command" in kinds:
            recent += _commands(bus, ctx, fitting)
        recent += _batches(bus) if "batch" in kinds else []
        recent += _processes(bus) if "process" in kinds else []
        found = [offer for offer in recent if offer[0].startswith(incomplete.lower())]
        if found or not as_id_parts(incomplete):
            return found[:SHOWN]
        fitted = [one for kind in kinds for one in bus.look_up(incomplete, kind)]
        return [_Whole(one) for one in fitted[:SHOWN]]

    return _offered(ask)


def subject(action: Action) -> Complete | None:
    """What may be the subject of an action."""
    match action.subject.keys[-1].name:
        case "domain":
            return domains
        case "name":
            return schedules
        case "target":
            return breakers
        case "command_id":
            return ids("command", fitting=tuple(s for s in action.when if s.isupper()))
        case "batch_id":
            return ids("batch")
        case "process_id":
            return ids("process")
        case _:
            return None
