"""PGMQ's own operations, by the functions that the server has; see the clients in the runtimes.

Each is one call of one function of the schema `pgmq`. Rows come as JSON objects, that is, by the names
of their columns, so that versions which have more of them, or in another order, do not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from commandbus.domain import payload
from commandbus.domain.moment import Duration, as_seconds
from commandbus.domain.names import as_queue, as_text
from commandbus.errors import InvalidArgumentError
from commandbus.store.op import Autocommit, Op, autocommit

POLL_SECONDS_MAX = 20.0
"""A read that waits holds a connection, and the server ends statements after 25 seconds."""

T = TypeVar("T")


class PgmqMessage(msgspec.Struct, frozen=True):
    """A message as it was read."""

    msg_id: int
    read_ct: int
    enqueued_at: datetime
    vt: datetime
    """When it becomes visible again."""
    message: Any
    headers: dict[str, Any] | None = None
    last_read_at: datetime | None = None


class PgmqQueue(msgspec.Struct, frozen=True):
    queue_name: str
    is_partitioned: bool
    is_unlogged: bool
    created_at: datetime


class PgmqMetrics(msgspec.Struct, frozen=True):
    """A queue at one moment; ages in seconds."""

    queue_name: str
    queue_length: int
    newest_msg_age_sec: int | None
    oldest_msg_age_sec: int | None
    total_messages: int
    scrape_time: datetime
    queue_visible_length: int | None = None


@autocommit
def create(client: object, queue: str) -> Op[None]:
    """Create a queue; one that exists stays as it is."""
    yield _call("create", "$1::text", as_queue(queue))


@autocommit
def create_unlogged(client: object, queue: str) -> Op[None]:
    """Create a queue that is faster, and empty after a crash of the server."""
    yield _call("create_unlogged", "$1::text", as_queue(queue))


@autocommit
def create_partitioned(
    client: object, queue: str, partition_interval: str = "10000", retention_interval: str = "100000"
) -> Op[None]:
    """Create a queue in partitions, by numbers of messages or by time; needs pg_partman."""
    intervals = (
        as_text(partition_interval, "partition_interval"),
        as_text(retention_interval, "retention_interval"),
    )
    yield _call("create_partitioned", "$1::text, $2::text, $3::text", as_queue(queue), *intervals)


@autocommit
def drop(client: object, queue: str) -> Op[bool]:
    """Remove a queue, its messages and its archive; False when there is none."""
    return bool((yield _call("drop_queue", "$1::text", as_queue(queue)))[0][0])


@autocommit
def purge(client: object, queue: str) -> Op[int]:
    """Delete all messages of a queue; returns how many there were."""
    return int((yield _call("purge_queue", "$1::text", as_queue(queue)))[0][0])


@autocommit
def list_queues(client: object) -> Op[list[PgmqQueue]]:
    """All queues of the database."""
    return _decoded((yield _rows("list_queues", "")), PgmqQueue)


@autocommit
def send(
    client: object,
    queue: str,
    message: Any,
    *,
    headers: dict[str, Any] | None = None,
    delay: Duration | None = None,
) -> Op[int]:
    """Send a message, visible after `delay`; returns its number."""
    rows = yield _call(
        "send",
        "$1::text, $2::text::jsonb, $3::text::jsonb, clock_timestamp() + $4::bigint"
        " * interval '1 microsecond'",
        as_queue(queue),
        payload.encode(message, what="message"),
        _headers(headers),
        _microseconds(delay, "delay"),
    )
    return int(rows[0][0])


@autocommit
def send_batch(
    client: object,
    queue: str,
    messages: Sequence[Any],
    *,
    headers: Sequence[dict[str, Any] | None] | None = None,
    delay: Duration | None = None,
) -> Op[list[int]]:
    """Send messages at once, with as many headers or none; returns their numbers."""
    if not messages:
        return []
    if headers is not None and len(headers) != len(messages):
        raise InvalidArgumentError(
            f"There are {len(messages)} messages and {len(headers)} headers; give one for each."
        )
    texts = [payload.encode(message, what="message") for message in messages]
    heads = None if headers is None else _json([_headers(each) for each in headers])
    rows = yield _call(
        "send_batch",
        "$1::text, array(select t::jsonb from json_array_elements_text($2::text::json) t),"
        " case when $3::text is not null then"
        " array(select t::jsonb from json_array_elements_text($3::text::json) t) end,"
        " clock_timestamp() + $4::bigint * interval '1 microsecond'",
        as_queue(queue),
        _json(texts),
        heads,
        _microseconds(delay, "delay"),
    )
    return [int(row[0]) for row in rows]


@autocommit
def read(client: object, queue: str, *, vt: Duration = 30, quantity: int = 1) -> Op[list[PgmqMessage]]:
    """Read messages, and make them invisible for `vt` seconds."""
    params = as_queue(queue), _whole_seconds(vt), _count(quantity)
    return _decoded((yield _rows("read", _READ, *params)), PgmqMessage)


@autocommit
def read_with_poll(
    client: object,
    queue: str,
    *,
    vt: Duration = 30,
    quantity: int = 1,
    max_wait: Duration = 5,
    poll_interval: Duration = 0.1,
) -> Op[list[PgmqMessage]]:
    """The same, waiting on the server for up to `max_wait` seconds for the first message."""
    params = as_queue(queue), _whole_seconds(vt), _count(quantity), *_polling(max_wait, poll_interval)
    return _decoded((yield _rows("read_with_poll", _POLL, *params)), PgmqMessage)


@autocommit
def read_grouped(
    client: object, queue: str, *, vt: Duration = 30, quantity: int = 1
) -> Op[list[PgmqMessage]]:
    """Read in order within groups (header `x-pgmq-group`), as many as possible of the first group."""
    params = as_queue(queue), _whole_seconds(vt), _count(quantity)
    return _decoded((yield _rows("read_grouped", _READ, *params)), PgmqMessage)


@autocommit
def read_grouped_rr(
    client: object, queue: str, *, vt: Duration = 30, quantity: int = 1
) -> Op[list[PgmqMessage]]:
    """Read in order within groups, the groups taking turns."""
    params = as_queue(queue), _whole_seconds(vt), _count(quantity)
    return _decoded((yield _rows("read_grouped_rr", _READ, *params)), PgmqMessage)


@autocommit
def pop(client: object, queue: str) -> Op[PgmqMessage | None]:
    """Read a message and delete it at once: delivered once at most."""
    found = _decoded((yield _rows("pop", "$1::text", as_queue(queue))), PgmqMessage)
    return found[0] if found else None


@autocommit
def set_vt(client: object, queue: str, msg_id: int, vt: Duration) -> Op[PgmqMessage | None]:
    """Make a message visible `vt` seconds from now; None when it is gone."""
    rows = yield _rows(
        "set_vt",
        "$1::text, $2::bigint, $3::bigint::integer",
        as_queue(queue),
        _number(msg_id),
        _whole_seconds(vt),
    )
    found = _decoded(rows, PgmqMessage)
    return found[0] if found else None


@autocommit
def delete(client: object, queue: str, msg_ids: int | Iterable[int]) -> Op[list[int]]:
    """Delete messages; returns those that were there."""
    return (yield from _remove("delete", queue, msg_ids))


@autocommit
def archive(client: object, queue: str, msg_ids: int | Iterable[int]) -> Op[list[int]]:
    """Move messages to the queue's archive; returns those that were there."""
    return (yield from _remove("archive", queue, msg_ids))


@autocommit
def metrics(client: object, queue: str) -> Op[PgmqMetrics]:
    """Length and age of a queue."""
    return _decoded((yield _rows("metrics", "$1::text", as_queue(queue))), PgmqMetrics)[0]


@autocommit
def metrics_all(client: object) -> Op[list[PgmqMetrics]]:
    """The same of all queues."""
    return _decoded((yield _rows("metrics_all", "")), PgmqMetrics)


@autocommit
def bind_topic(client: object, pattern: str, queue: str) -> Op[None]:
    """Let a queue have what is sent to topics that match: `*` is one word, `#` any number of them."""
    yield _call("bind_topic", "$1::text, $2::text", as_text(pattern, "pattern"), as_queue(queue))


@autocommit
def unbind_topic(client: object, pattern: str, queue: str) -> Op[bool]:
    """Take a binding back; False when there was none."""
    params = as_text(pattern, "pattern"), as_queue(queue)
    return bool((yield _call("unbind_topic", "$1::text, $2::text", *params))[0][0])


@autocommit
def send_topic(
    client: object,
    topic: str,
    message: Any,
    *,
    headers: dict[str, Any] | None = None,
    delay: Duration | None = None,
) -> Op[int]:
    """Send a message to every queue that is bound to the topic; returns to how many."""
    rows = yield _call(
        "send_topic",
        "$1::text, $2::text::jsonb, $3::text::jsonb, $4::bigint::integer",
        as_text(topic, "topic"),
        payload.encode(message, what="message"),
        _headers(headers),
        0 if delay is None else _whole_seconds(delay, "delay"),
    )
    return int(rows[0][0])


@autocommit
def enable_notify(client: object, queue: str, *, throttle: Duration = 0.25) -> Op[None]:
    """Let PGMQ notify its channel of the queue at inserts, once per `throttle` seconds at most."""
    milliseconds = int(as_seconds(throttle, "throttle") * 1000)
    yield _call("enable_notify_insert", "$1::text, $2::bigint::integer", as_queue(queue), milliseconds)


@autocommit
def disable_notify(client: object, queue: str) -> Op[None]:
    """Take that back."""
    yield _call("disable_notify_insert", "$1::text", as_queue(queue))


_READ = "$1::text, $2::bigint::integer, $3::bigint::integer"
_POLL = f"{_READ}, $4::bigint::integer, $5::bigint::integer"


def _call(function: str, arguments: str, *params: Any) -> Autocommit:
    return Autocommit(f"select * from pgmq.{function}({arguments})", params)  # noqa: S608 - ours, all of it


def _rows(function: str, arguments: str, *params: Any) -> Autocommit:
    sql = f"select to_json(r)::text from pgmq.{function}({arguments}) r"  # noqa: S608 - ours, all of it
    return Autocommit(sql, params)


def _decoded(rows: Any, kind: type[T]) -> list[T]:
    return [msgspec.json.decode(row[0], type=kind) for row in rows]


def _remove(function: str, queue: str, msg_ids: int | Iterable[int]) -> Op[list[int]]:
    numbers = [msg_ids] if isinstance(msg_ids, int) else list(msg_ids)
    text = "{" + ",".join(str(_number(number)) for number in numbers) + "}"
    rows = yield _call(function, "$1::text, $2::text::bigint[]", as_queue(queue), text)
    return [int(row[0]) for row in rows]


def _headers(headers: dict[str, Any] | None) -> str | None:
    if headers is not None and not isinstance(headers, dict):
        raise InvalidArgumentError(f"headers must be a dict, not {headers!r}.")
    return None if headers is None else payload.encode(headers, what="headers")


def _json(values: list[Any]) -> str:
    return msgspec.json.encode(values).decode()


def _microseconds(duration: Duration | None, name: str) -> int:
    return 0 if duration is None else int(as_seconds(duration, name) * 1_000_000)


def _whole_seconds(duration: Duration, name: str = "vt") -> int:
    seconds = as_seconds(duration, name)
    if seconds != int(seconds):
        raise InvalidArgumentError(f"{name} must be whole seconds, as PGMQ counts, not {duration!r}.")
    return int(seconds)


def _polling(max_wait: Duration, poll_interval: Duration) -> tuple[int, int]:
    seconds = _whole_seconds(max_wait, "max_wait")
    if seconds > POLL_SECONDS_MAX:
        raise InvalidArgumentError(
            f"max_wait must be at most {POLL_SECONDS_MAX:g} seconds, not {max_wait!r}: the read holds "
            "a connection meanwhile. Read again instead."
        )
    return seconds, max(1, int(as_seconds(poll_interval, "poll_interval") * 1000))


def _count(quantity: int) -> int:
    if isinstance(quantity, bool) or not isinstance(quantity, int) or not 1 <= quantity <= 100_000:
        raise InvalidArgumentError(f"quantity must be between 1 and 100,000, not {quantity!r}.")
    return quantity


def _number(msg_id: int) -> int:
    if isinstance(msg_id, bool) or not isinstance(msg_id, int) or not 0 < msg_id < 2**63:
        raise InvalidArgumentError(f"A message's number is a positive whole number, not {msg_id!r}.")
    return msg_id
