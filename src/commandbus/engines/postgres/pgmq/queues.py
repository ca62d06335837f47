"""Which queues a domain has, as this process knows them, and the statements over them.

PGMQ keeps each queue in tables of its own, so a statement over a domain's queues names their tables.
Statements are templates (sql/messages.sql): parts are repeated for each queue, and the text is made
once for each set of queues, so that the server plans it once per connection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import msgspec

from commandbus.domain.reply import REPLY_TYPE
from commandbus.engines.postgres.insert_query import COMMANDS, Insert
from commandbus.engines.postgres.pgmq.names import quoted_table
from commandbus.engines.postgres.settle_query import LISTS, Extent, compile_settle
from commandbus.engines.postgres.statements import in_schema, parts
from commandbus.engines.postgres.templates import (
    BIGINT,
    INTEGER,
    SMALLINT,
    TEXT,
    UUID_,
    Columns,
    Query,
    compile_query,
    optional,
)
from commandbus.store.sql_files import load

PACKAGE = "commandbus.engines.postgres.pgmq.sql"
GRACE_SECONDS = 10
"""How much longer than its lease a message stays invisible: the rescue of the lease counts the
crash and makes the message visible again, before another reader of the queue could meet it."""

CRASHES = """case when read_ct > 0 and jsonb_typeof(headers #> '{commandbus,2}') = 'number'
        then (headers #>> '{commandbus,2}')::numeric else 0 end"""
"""The crashes that a message counts; anything may stand in the headers of other senders."""

MEMBERS = Columns(
    "members", lease_id=BIGINT, queue_id=INTEGER, msg_id=BIGINT, read_ct=INTEGER, seq=BIGINT
)
"""Messages under leases."""
WAITING = Columns(
    "waiting",
    seq=BIGINT,
    ready_at=optional(BIGINT),
    attempts=SMALLINT,
    crashes=SMALLINT,
    releases=SMALLINT,
)
"""Commands that are to get messages."""
FATES = Columns(
    "fates",
    proof=BIGINT,
    seq=BIGINT,
    queue_id=INTEGER,
    msg_id=BIGINT,
    read_ct=INTEGER,
    fate=SMALLINT,
)
"""What becomes of messages."""
MESSAGES = Columns(
    "messages",
    queue_id=INTEGER,
    msg_id=BIGINT,
    read_ct=INTEGER,
    command_id=UUID_,
    command_type=TEXT,
    data=TEXT,
    correlation_id=UUID_,
    causation_id=UUID_,
    reply_to=TEXT,
    priority=INTEGER,
    max_attempts=optional(SMALLINT),
    created_at=BIGINT,
    expires_at=optional(BIGINT),
    tags=TEXT,
    headers=TEXT,
)
"""Messages of other senders, and the commands that they become."""

_JOINS = {"each": ",\n", "any": "\nunion all\n", "sum": "\n+ ", "all": "\n"}
_REPEATED = re.compile(r"@(each|any|sum|all) (\w+)@")


@cache
def templates(schema: str) -> SimpleNamespace:
    """The statements and parts of statements, for a schema; those over queues are not complete."""
    found = vars(load(PACKAGE, "messages.sql"))
    return SimpleNamespace(**{name: in_schema(sql, schema) for name, sql in found.items()})


class Queue(msgspec.Struct, frozen=True):
    """A queue that is bound to a domain."""

    queue_id: int
    name: str
    domain: str
    priority: int
    replies: bool
    mapping: str | None
    """Of an adopted queue: how its messages become commands."""
    sequence: str

    @property
    def table(self) -> str:
        return quoted_table("q", self.name)


class Texts:
    """The statements of one schema and one version of PGMQ, made when they are first needed."""

    def __init__(self, schema: str, *, last_read_at: bool) -> None:
        self._last_read_at = last_read_at
        # Before names of queues and domains are put in, which only look like the schema's.
        self._schema = schema
        self._templates = templates(schema)
        self._made: dict[tuple[str, tuple[int, ...]], Any] = {}

    def __call__(self, name: str, queues: Sequence[Queue]) -> str:
        """A plain statement over queues."""
        text: str = self._make(name, queues, lambda: self._expanded(name, queues))
        return text

    def of_one(self, name: str, queue: Queue) -> str:
        """A plain statement over one queue."""
        part = getattr(self._templates, name)
        text: str = self._make(name, [queue], lambda: self._filled(part, queue, 1))
        return text

    def renew(self, queues: Sequence[Queue]) -> Query:
        return self._query("renew", queues, [MEMBERS])

    def put(self, queues: Sequence[Queue]) -> Query:
        return self._query("put", queues, [WAITING])

    def admit(self, queues: Sequence[Queue]) -> Query:
        return self._query("admit", queues, [MESSAGES])

    def claim(self, queues: Sequence[Queue], *, fresh: bool) -> Query:
        """With `fresh`, only of what was never read."""

        def build() -> Query:
            return compile_query(
                self._expanded("claim", queues),
                found="taken" if fresh else "found",
                looks=self._expanded("fresh_looks" if fresh else "looks", queues),
                suspects_left="" if fresh else self._templates.suspects_left,
                some_ended=parts(self._schema, "claim.sql").some_ended,
            )

        query: Query = self._make("claim fresh" if fresh else "claim", queues, build)
        return query

    def insert(self, queues: Sequence[Queue]) -> Insert:
        """The engine's statement that adds commands, with messages in place of rows that wait."""

        def build() -> Insert:
            text = parts(self._schema, "insert.sql").insert_commands
            query = compile_query(text, [COMMANDS], places=self._expanded("put_into", queues))
            return Insert(query.sql, query.names)

        insert: Insert = self._make("insert", queues, build)
        return insert

    def settle(self, queues: Sequence[Queue], *, lock: bool) -> Query:
        """The engine's settle, which also checks the messages first, and moves them in the end;
        `lock` is for messages of different read counts."""

        def build() -> Query:
            return compile_settle(
                self._schema,
                "all",
                [*LISTS, FATES],
                before=self._expanded("before_proof", queues),
                fenced="and l.lease_id not in (select proof from unfit)",
                lock="for update" if lock else "",
                places=self._expanded("instead_of_places", queues),
                after="",
            )

        query: Query = self._make("settle locked" if lock else "settle", queues, build)
        return query

    def settle_quickly(self, queues: Sequence[Queue], extent: Extent) -> Query:
        """The engine's settle for completed commands, which deletes their messages or is undone."""

        def build() -> Query:
            return compile_settle(
                self._schema,
                extent,
                LISTS,
                before="",
                fenced="",
                places=self._expanded("quick_places", queues),
                after=self._expanded("quick_end", queues),
            )

        query: Query = self._make(f"settle {extent} quickly", queues, build)
        return query

    def _query(self, name: str, queues: Sequence[Queue], columns: Sequence[Columns]) -> Query:
        query: Query = self._make(
            name, queues, lambda: compile_query(self._expanded(name, queues), columns)
        )
        return query

    def _make(self, name: str, queues: Sequence[Queue], build: Callable[[], Any]) -> Any:
        key = name, tuple(queue.queue_id for queue in queues)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = build()
        return made

    def _expanded(self, name: str, queues: Sequence[Queue]) -> str:
        def repeat(found: re.Match[str]) -> str:
            part = getattr(self._templates, found[2])
            return _JOINS[found[1]].join(
                self._filled(part, queue, position) for position, queue in enumerate(queues, 1)
            )

        return _REPEATED.sub(repeat, getattr(self._templates, name))

    def _filled(self, text: str, queue: Queue, position: int) -> str:
        columns = "msg_id, read_ct, enqueued_at, vt, message"
        values = {
            "queue": queue.queue_id,
            "position": position,
            "priority": queue.priority,
            "domain": queue.domain.replace("'", "''"),
            "replies": "true" if queue.replies else "false",
            "reply": REPLY_TYPE,
            "sequence": queue.sequence,
            "table": queue.table,
            "archive": quoted_table("a", queue.name),
            "columns": columns + (", last_read_at" if self._last_read_at else ""),
            "last_read": ", last_read_at = (select at from gate)" if self._last_read_at else "",
            "grace": GRACE_SECONDS * 1_000_000,
            "crashes": CRASHES,
        }
        return re.sub(r"@(\w+)@", lambda found: str(values.get(found[1], found[0])), text)


class Queues:
    """The queues of this process's domains, as last seen. Queues are added, hardly ever dropped: a
    statement over one that is gone fails, and makes all be forgotten. What was seen inside a
    transaction that may yet be undone is used, and looked up again next time."""

    def __init__(self) -> None:
        self._by_domain: dict[str, list[Queue]] = {}
        self._by_id: dict[int, Queue] = {}
        self._sure: set[str] = set()

    def of(self, domain: str) -> list[Queue]:
        return self._by_domain.get(domain, [])

    def is_sure(self, domain: str) -> bool:
        return domain in self._sure

    def get(self, queue_id: int) -> Queue | None:
        return self._by_id.get(queue_id)

    def all(self) -> list[Queue]:
        return list(self._by_id.values())

    def among(self, queue_ids: Iterable[int]) -> list[Queue]:
        """The queues of these ids, in one order for every set; without those that were dropped."""
        known = self._by_id
        return [known[queue_id] for queue_id in sorted(set(queue_ids)) if queue_id in known]

    def carrier(self, domain: str, priority: int, command_type: str) -> Queue | None:
        """The queue that carries such commands."""
        replies = command_type == REPLY_TYPE
        for queue in self.of(domain):
            if queue.priority == priority and queue.replies == replies and queue.mapping is None:
                return queue
        return None

    def learn(self, domains: Iterable[str] | None, rows: Iterable[Any]) -> None:
        """The rows of the query `queues`, asked about these domains, or about all."""
        found: dict[str, list[Queue]] = {domain: [] for domain in domains or ()}
        by_id, unsure = dict[int, Queue](), set[str]()
        for *columns, may_go in rows:
            queue = Queue(*columns)
            by_id[queue.queue_id] = queue
            found.setdefault(queue.domain, []).append(queue)
            if may_go:
                unsure.add(queue.domain)
        if domains is None:
            self._by_id, self._by_domain = by_id, found
            self._sure = (self._sure & found.keys()) - unsure
        else:
            self._by_id = self._by_id | by_id
            self._by_domain = self._by_domain | found
            asked = {domain for domain in domains if found[domain]}
            self._sure = (self._sure - found.keys()) | (asked - unsure)

    def forget(self) -> None:
        self._by_domain, self._sure = {}, set()
