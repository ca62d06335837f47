"""Sends whose unique key says more than that its command is the only one alive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.moment import SECOND
from commandbus.domain.unique import ALIVE, Unique
from commandbus.errors import DuplicateCommandError, InvalidOperationError, UniqueKeyHeld
from commandbus.operations.scope import Scope
from commandbus.store.documents import Document
from commandbus.store.op import Op
from commandbus.store.records import Capacity, Inserted, NewCommand

Tell = Callable[[Scope, str, UUID], Op[None]]

KIND = "unique"
REPLACED = "REPLACED"


def insert_unique(
    scope: Scope,
    commands: Sequence[NewCommand],
    options: Iterable[Unique | None],
    capacity: Capacity,
    tell: Tell,
) -> Op[list[Inserted]]:
    """Add commands one by one, all or none, each by what its key says. `tell` tells the sender of a
    command that was replaced."""
    results: list[Inserted] = []
    for command, unique in zip(commands, options, strict=True):
        if unique is None:
            results += yield from scope.insert([command], capacity)
        else:
            results.append((yield from _insert_one(scope, command, unique, capacity, tell)))
    return results


def _insert_one(
    scope: Scope, command: NewCommand, unique: Unique, capacity: Capacity, tell: Tell
) -> Op[Inserted]:
    holder = yield from _holder_by_window(scope, command)
    if holder == command.command_id:
        raise DuplicateCommandError(command.domain, command.command_id)
    while True:
        if holder is None:
            result = (yield from scope.insert([command], capacity))[0]
            if not result.duplicate:
                yield from _open_window(scope, command, unique)
                return result
            holder = result.command_id
        if not (yield from _makes_way(scope, command, unique, holder, tell)):
            break
        holder = None
    if unique.on_conflict == "reject":
        raise UniqueKeyHeld(command.domain, command.unique_key or "", holder)
    return Inserted(holder, duplicate=True)


def _makes_way(scope: Scope, command: NewCommand, unique: Unique, holder: UUID, tell: Tell) -> Op[bool]:
    """Whether a key is free now that its holder had; by what its command's state says."""
    found = yield from scope.store.find(holder, command.domain)
    if not found:
        return True
    record = found[0]
    if record.status is CommandStatus.PENDING and unique.on_conflict == "replace":
        try:
            yield from scope.store.cancel(command.domain, holder, REPLACED, None)
        except InvalidOperationError:
            return False  # a worker began with it just now
        yield from tell(scope, command.domain, holder)
        return True
    if record.status in ALIVE and record.status not in unique.states:
        yield from scope.store.free_key(command.domain, command.unique_key or "")
        return True
    return False


def _key(command: NewCommand) -> str:
    return f"{command.domain} {command.unique_key}"


def _holder_by_window(scope: Scope, command: NewCommand) -> Op[UUID | None]:
    """The command that holds the key by a window, also when it has ended."""
    document = yield from scope.store.get_document(KIND, _key(command))
    if document is None or (document.due_at or 0) <= (yield from scope.store.now()):
        return None
    return UUID(document.body.strip('"'))


def _open_window(scope: Scope, command: NewCommand, unique: Unique) -> Op[None]:
    if unique.window is None:
        return
    seconds = unique.window if isinstance(unique.window, int | float) else 0.0
    while True:
        known = yield from scope.store.get_document(KIND, _key(command))
        until = (yield from scope.store.now()) + int(seconds * SECOND)
        version, body = known.version if known else 0, f'"{command.command_id}"'
        opened = Document(KIND, _key(command), version, "held", until, body)
        if (yield from scope.store.put_document(opened)):
            return


def forget_windows(scope: Scope) -> Op[int]:
    """Drop windows that are over; returns how many."""
    over = yield from scope.store.due_documents(KIND)
    for document in over:
        yield from scope.store.delete_document(KIND, document.key)
    return len(over)


def forget_window(scope: Scope, domain: str, command_id: UUID, unique_key: str | None) -> Op[None]:
    """Drop the window that a command opened: its key names what is being erased."""
    key = f"{domain} {unique_key}"
    document = yield from scope.store.get_document(KIND, key)
    if document is not None and document.body == f'"{command_id}"':
        yield from scope.store.delete_document(KIND, key)
