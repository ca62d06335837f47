"""`promote`: live commands from an SQLite file to a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from commandbus.interfaces.cli import options, output, target, text
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.store.urls import shown_url

if TYPE_CHECKING:
    from commandbus.store.moving import Survey
    from commandbus.sync import SyncCommandBus


def promote(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="sqlite:///jobs.db")],
    destination: Annotated[str, typer.Argument(metavar="TARGET", help="postgresql://…")],
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    operator: options.Operator = None,
    json: options.Json = False,
) -> None:
    """Move what waits or is parked from an SQLite file to a PostgreSQL server.

    Stop the workers of the file first. Each command leaves the file before it arrives, so it never
    runs twice; after an interruption, repeat it. Commands of batches and processes stay.
    """
    if not source.startswith("sqlite:") or not destination.startswith("postgres"):
        raise CliError(
            "Commands are moved from sqlite:///FILE to postgresql://…, in this order.", Exit.USAGE
        )
    from commandbus.operations import promotion

    with target.acting(source, operator) as old, target.acting(destination, operator) as new:
        promotion.check_arriving(new.scope)
        if not dry_run:
            old.session.run(promotion.take_back(old.scope))
        found: Survey = old.session.run(promotion.survey(old.scope), read=True)
        moved = arrived = 0
        if not dry_run:
            _check_idle(found)
            where = shown_url(destination).partition("?")[0]
            options.confirm(f"Move {_told(found)} to {where}?", yes=yes)
            _pause_alike(old, new)
            total = found.waiting + found.parked + found.in_transit
            with output.progress("promote", total) as advance:
                moved, arrived = move(old, new, shown_url(source), where, advance)
            found = old.session.run(promotion.survey(old.scope), read=True)
    if json:
        output.json_document({"moved": moved, "arrived": arrived, "left": found})
    elif dry_run:
        output.note(f"would move {_told(found)}")
    else:
        known = f", {moved - arrived} of them known there before" if moved > arrived else ""
        output.done(f"{text.plural(moved, 'command')} moved{known}")
    _warn(found)
    if not dry_run and (found.waiting or found.parked or found.in_batches or found.in_processes):
        raise typer.Exit(Exit.FAILURE)


def move(
    old: SyncCommandBus,
    new: SyncCommandBus,
    origin: str,
    where: str,
    advance: Callable[[int], None] = lambda pieces: None,
) -> tuple[int, int]:
    """Piece by piece: out of the one, into the other, forgotten; `advance` is called with the size of
    each. Returns how many were moved, and how many of them were new there."""
    from commandbus.operations import promotion

    moved = arrived = 0
    after: int | None = 0
    while True:
        moving = old.session.run(promotion.list_moving(old.scope), read=True)
        if moving:
            arrived += new.session.run(promotion.arrive(new.scope, list(moving.values()), origin))
            old.session.run(promotion.confirm(old.scope, moving))
            moved += len(moving)
            advance(len(moving))
        elif after is None:
            return moved, arrived
        else:
            after = old.session.run(promotion.depart(old.scope, where, after)).last


def _check_idle(found: Survey) -> None:
    if found.running:
        raise CliError(
            f"{text.plural(found.running, 'command')} running in the source; stop its workers first.",
            Exit.FAILURE,
        )


def _pause_alike(old: SyncCommandBus, new: SyncCommandBus) -> None:
    """What is paused must not begin to run because it moved."""
    for domain in old.list_domains():
        stats = old.stats(domain)
        if stats.paused and not new.stats(domain).paused:
            new.pause(domain, stats.paused_reason)


def _told(found: Survey) -> str:
    coming = f", {found.in_transit} on their way since before" if found.in_transit else ""
    return f"{found.waiting:,} waiting and {text.plural(found.parked, 'parked command')}{coming}"


def _warn(found: Survey) -> None:
    for count, what in (
        (found.running, "running: promote again when they have ended"),
        (found.in_batches, "of batches stay; let the batches end, or cancel them"),
        (found.in_processes, "of processes stay; let the processes end, or cancel them"),
    ):
        if count:
            output.warn(f"{text.plural(count, 'command')} {what}")
