"""Sending commands: everything is checked here, in the thread of the caller."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar, Unpack

import msgspec

from commandbus.domain import payload
from commandbus.domain.cause import running, trace_of
from commandbus.domain.command import (
    Command,
    SendOptions,
    SendRequest,
    SendResult,
    TypedRequest,
    as_request,
)
from commandbus.domain.contract import CommandType
from commandbus.domain.counts import as_items
from commandbus.domain.ids import as_id, id_of_key
from commandbus.domain.limits import as_required_tags
from commandbus.domain.moment import SECOND, as_microseconds, as_seconds
from commandbus.domain.names import as_command_type, as_name, as_tags
from commandbus.domain.priority import as_priority
from commandbus.domain.retry import RETRY_HEADER, check_max_attempts, header_of
from commandbus.domain.send_results import SendResults
from commandbus.errors import (
    InvalidArgumentError,
    RateLimited,
)
from commandbus.operations.actions import record_action
from commandbus.operations.batch_documents import join_batches
from commandbus.operations.commands import reply_to_sender
from commandbus.operations.extras import RareOptions
from commandbus.operations.scope import Scope
from commandbus.operations.uniqueness import insert_unique
from commandbus.settings import BusSettings
from commandbus.store.op import Op, autocommit
from commandbus.store.records import OPTIONAL, Capacity, Inserted, NewCommand

R = TypeVar("R")
Cause = Command[Any] | None
BLOCK = 10_000
"""So many requests of an iterator are read at a time, where the store can send some before others."""
BLOCK_SECONDS = 5.0
"""An iterator that takes longer is read to its end first: a transaction must not stay open idle."""


def send(
    scope: Scope,
    domain: str | SendRequest[R],
    command_type: str | None = None,
    data: Any = None,
    **options: Unpack[SendOptions],
) -> Op[SendResult[R]]:
    """Send a command. When this returns, the command is durable and will be carried out.

    The command is a request, such as a call of a typed command makes, or a domain, a command type and
    a payload; options given here replace those of the request.
    `command_id` makes a repeated send safe: the second one raises DuplicateCommandError. So does an
    `idempotency_key`, a text that stands for the same id whenever it is sent to the domain. With
    `unique_key`, while a command with that key is alive in the domain, nothing is added and the
    result names the one that is there. `delay` or `due_at` postpone it; after `expires_at`, or
    `expires` seconds after it is due, it is not started any more. Commands with one `group_key` run
    one at a time, in order within a priority; those with `requires` run on workers that have all these
    tags. `unique` says more about the unique key; `sender` is who is counted where sends per second
    are limited; `retry` is the command's own policy, before that of its handler, and `max_attempts`
    before it. Inside a handler the correlation id, the causation id and the trace are those of the
    handler's command, unless given.
    Raises PayloadError, InvalidArgumentError, QueueFull (RateLimited for a sender), StoreUnavailable.
    """
    request = as_request(domain, command_type, data, options)
    is_plain = request.unique is None and request.sender is None and request.batch_id is None
    if is_plain and scope.actor is None:
        contract = request.contract if isinstance(request, TypedRequest) else None
        return _insert_one(scope, encode_request(scope, request, running.get()), contract)
    return _first(send_many(scope, [request]))


def send_many(scope: Scope, requests: Iterable[SendRequest[R]]) -> Op[Sequence[SendResult[R]]]:
    """Send any number of commands, to any domains: all of them or, on any error, none.

    Results come in the order of the requests. Each domain is woken once, or once for every so many
    thousand commands. The requests of an iterator are not kept, so a million of them may come. On
    PostgreSQL the iterator is read while the transaction is open, 10,000 requests at a time, unless the
    first 10,000 took longer than 5 seconds; the results are made when they are looked at, then.
    """
    cause, began = running.get(), scope.clock()
    items = as_items(requests, "requests")
    source = iter(items)
    streamed = scope.store.capabilities.streamed_sends and not isinstance(items, Sized)
    block: _Block[R] = _Block([], [], {})
    block.read(scope, islice(source, BLOCK) if streamed else source, cause)
    if streamed and len(block.commands) == BLOCK:
        quick = scope.clock() - began < BLOCK_SECONDS * SECOND
        if quick and scope.actor is None and block.is_simple():
            return _insert_blocks(scope, block, source, cause)
        block.read(scope, source, cause)
    insert = block.insert(scope)
    return insert if scope.actor is None else _record_send(scope, block.commands, insert)


class _Block(NamedTuple, Generic[R]):
    """Requests of a bulk send, checked and encoded."""

    commands: list[NewCommand]
    contracts: list[CommandType[..., R] | None]
    special: dict[int, SendRequest]
    """Those with a sender, or more to say about their unique key, by position."""

    def read(self, scope: Scope, requests: Iterable[SendRequest[R]], cause: Cause) -> None:
        for request in requests:
            self.commands.append(encode_request(scope, request, cause))
            self.contracts.append(request.contract if isinstance(request, TypedRequest) else None)
            if request.unique is not None or request.sender is not None:
                self.special[len(self.commands) - 1] = request

    def is_simple(self) -> bool:
        """No command needs to be seen together with those of other blocks."""
        apart = (c.unique_key is None and c.batch_id is None for c in self.commands)
        return not self.special and all(apart)

    def insert(self, scope: Scope) -> Op[list[SendResult[R]]]:
        commands, contracts = self.commands, self.contracts
        if self.special:
            extras = RareOptions.of(self.special, len(commands))
            insert = _insert_special(scope, commands, contracts, extras)
        else:
            insert = _insert(scope, commands, contracts)
        if any(command.batch_id is not None for command in commands):
            return join_batches(scope, commands, insert)
        return insert


def _insert_blocks(
    scope: Scope, block: _Block[R], source: Iterator[SendRequest[R]], cause: Cause
) -> Op[Sequence[SendResult[R]]]:
    """In one transaction, of which this process holds one block at a time."""
    results: SendResults[R] = SendResults()
    while block.commands:
        results.add((yield from block.insert(scope)))
        block = _Block([], [], {})
        block.read(scope, islice(source, BLOCK), cause)
    return results


def _record_send(
    scope: Scope, commands: Sequence[NewCommand], insert: Op[list[SendResult]]
) -> Op[list[SendResult]]:
    """A person sends: that is an operator action."""
    results = yield from insert
    new = [c for c, result in zip(commands, results, strict=True) if not result.duplicate]
    if len(new) == 1:
        subject = f"{new[0].domain} {new[0].command_type} {new[0].command_id}"
        yield from record_action(scope, "send", subject)
    elif new:
        domains = ", ".join(sorted({command.domain for command in new}))
        yield from record_action(scope, "send", f"{len(new)} commands to {domains}")
    return results


def _insert_special(
    scope: Scope,
    commands: list[NewCommand],
    contracts: list[CommandType[..., R] | None],
    extras: RareOptions,
) -> Op[list[SendResult[R]]]:
    """Some of them have a sender whose rate is limited, or more to say about their unique key."""
    for (domain, sender), count in sorted(extras.senders.items()):
        wait = yield from scope.store.take_tokens(domain, sender, count)
        if wait > 0:
            raise RateLimited(domain, sender, wait)
    if not extras.uniques:
        return (yield from _insert(scope, commands, contracts))
    capacity = Capacity(scope.settings.max_pending)
    inserted = yield from insert_unique(scope, commands, extras.uniques, capacity, reply_to_sender)
    return _results(scope, commands, contracts, inserted)


@autocommit
def _insert(
    scope: Scope, commands: list[NewCommand], contracts: list[CommandType[..., R] | None]
) -> Op[list[SendResult[R]]]:
    """Checked and encoded before, in the caller's thread: an op runs while it holds the write lock."""
    if not commands:
        return []
    inserted = yield from scope.insert(commands, Capacity(scope.settings.max_pending))
    return _results(scope, commands, contracts, inserted)


def _results(
    scope: Scope,
    commands: Sequence[NewCommand],
    contracts: Sequence[CommandType[..., R] | None],
    inserted: Sequence[Inserted],
) -> list[SendResult[R]]:
    if scope.settings.warn_depth is not None:
        for command, row in zip(commands, inserted, strict=True):
            scope.watch_depth(command.domain, row.pending)
    return [
        SendResult(row.command_id, command.domain, row.duplicate, contract)
        for command, row, contract in zip(commands, inserted, contracts, strict=True)
    ]


@autocommit
def _insert_one(
    scope: Scope, command: NewCommand, contract: CommandType[..., R] | None
) -> Op[SendResult[R]]:
    """What `_insert` does, for most sends."""
    settings = scope.settings
    inserted = yield from scope.insert([command], Capacity(settings.max_pending))
    row = inserted[0]
    if settings.warn_depth is not None:
        scope.watch_depth(command.domain, row.pending)
    return SendResult(row.command_id, command.domain, row.duplicate, contract)


def _first(op: Op[Sequence[SendResult[R]]]) -> Op[SendResult[R]]:
    return (yield from op)[0]


def encode_request(scope: Scope, request: SendRequest, cause: Cause = None) -> NewCommand:
    """Check a request at the door and turn it into what the store keeps. It continues the flow and
    the trace of its cause, unless it names others."""
    if not isinstance(request, SendRequest):
        raise InvalidArgumentError(f"send_many takes SendRequest objects, not {request!r}.")
    settings = scope.settings
    given, delay, headers, tags = request.command_id, request.delay, request.headers, request.tags
    if delay is not None and request.due_at is not None:
        raise InvalidArgumentError("Give either delay or due_at, not both.")
    if headers is not None and not isinstance(headers, dict):
        raise InvalidArgumentError(f"headers must be a dict, not {headers!r}.")
    if scope.carry is not None:
        headers = scope.carry(request)
    elif cause is not None and cause.headers:
        headers = trace_of(cause, headers)
    max_attempts = request.max_attempts
    if request.retry is not None:
        headers = (headers or {}) | {RETRY_HEADER: header_of(request.retry)}
        max_attempts = request.retry.max_attempts if max_attempts is None else max_attempts
    if given is None:
        key = request.idempotency_key
        command_id = scope.new_id() if key is None else id_of_key(request.domain, key)
    elif request.idempotency_key is None:
        command_id = as_id(given, "command_id")
    else:
        raise InvalidArgumentError("Give either command_id or idempotency_key, not both.")
    correlation_id, causation_id = request.correlation_id, request.causation_id
    if cause is not None:
        correlation_id = cause.correlation_id if correlation_id is None else correlation_id
        causation_id = cause.command_id if causation_id is None else causation_id
    # By position, in the order of its fields: names would take longer than the rest of a send's checks.
    command = NewCommand(
        as_name(request.domain, "domain"),
        as_command_type(request.command_type),
        command_id,
        payload.check_size(request.text, settings.payload_bytes_max)
        if isinstance(request, TypedRequest)
        else payload.encode(request.data, bytes_max=settings.payload_bytes_max),
        command_id if correlation_id is None else as_id(correlation_id, "correlation_id"),
        _priority(scope, request),
        0 if delay is None else int(as_seconds(delay, "delay") * SECOND),
        None if request.due_at is None else as_microseconds(request.due_at, "due_at"),
        None if causation_id is None else as_id(causation_id, "causation_id"),
        None if max_attempts is None else check_max_attempts(max_attempts),
        None if request.expires is None and request.expires_at is None else _expiry(scope, request),
        payload.encode(list(as_tags(tags)), what="tags") if tags else None,
        payload.encode(headers, what="headers", bytes_max=payload.HEADER_BYTES_MAX)
        if headers
        else None,
        ",".join(as_required_tags(request.requires))
        if request.requires
        else _affinity(settings, request),
    )
    given_as_is = _given_as_is(request)
    return command if given_as_is == _NOTHING else _with_checked(command, given_as_is)


_CHECKED = {column.name: column.check for column in OPTIONAL if column.check is not None}
_given_as_is = attrgetter(*_CHECKED)
_NOTHING = (None,) * len(_CHECKED)


def _with_checked(command: NewCommand, given: Sequence[Any]) -> NewCommand:
    """With the options that only need a check, in the order of the list of columns."""
    columns = {
        name: check(value, name)
        for (name, check), value in zip(_CHECKED.items(), given, strict=True)
        if value is not None
    }
    return msgspec.structs.replace(command, **columns)


def _expiry(scope: Scope, request: SendRequest) -> int | None:
    """When it is not begun any more: at a moment, or so long after it is due."""
    if request.expires is None:
        moment = request.expires_at
        return None if moment is None else as_microseconds(moment, "expires_at")
    if request.expires_at is not None:
        raise InvalidArgumentError("Give either expires or expires_at, not both.")
    due = scope.clock() if request.due_at is None else as_microseconds(request.due_at, "due_at")
    delay = 0.0 if request.delay is None else as_seconds(request.delay, "delay")
    return due + int((delay + as_seconds(request.expires, "expires", minimum=0.001)) * SECOND)


def _affinity(settings: BusSettings, request: SendRequest) -> str | None:
    """The tags that commands of its type require."""
    if not settings.affinity:
        return None
    tags = settings.affinity.get(request.domain, {}).get(request.command_type, ())
    return ",".join(as_required_tags(tags)) or None


def _priority(scope: Scope, request: SendRequest) -> int:
    settings, chosen = scope.settings, request.priority
    if chosen is None and settings.priority_hook is not None:
        chosen = settings.priority_hook(request)
    return as_priority(settings.default_priority if chosen is None else chosen, settings.priorities)
