"""The ledger: a chain over what operators did, in which every link carries the hash of the one before.

A link names an entry of a command's trail, or of the list of actions, and a salted digest of it. Links
outlive the entries: retention leaves them and is on record itself, and erasure removes the salt, after
which the digest reveals nothing. `verify_audit` finds entries and links that were changed, removed or
added. A writer of the tables could compute all later links again; with `ledger_key`, hashes are HMACs
by a key that is not in the store. A cut tail is found by the store's own mark of the last number, where
roles keep that out of reach, or by a hash from the log given as `expect`. Only operators' actions are
linked: settles never touch the one document that all links go through, nor do callers' transactions.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from commandbus.domain.audit import AuditEvent, AuditEventType
from commandbus.domain.moment import as_datetime
from commandbus.errors import ConfigurationError, InvalidArgumentError
from commandbus.operations.scope import Flow, Scope
from commandbus.store.documents import Document
from commandbus.store.op import TOGETHER, Op
from commandbus.store.records import AuditFilter

KIND, HEAD, OPEN = "ledger", "ledger.head", "ledger.open"
TOPIC = "commandbus.ledger"
ACTION = "action"
PAGE = 500
EVERYTHING = 2**62
PROBLEMS_MAX = 1_000
CANCEL = "cancel"
"""The action of asking a running command to stop; a worker may then cancel it in that name."""
REMOVALS = frozenset({"prune", "purge", "promote"})
"""Actions after which entries may be missing."""
UNSEALED = ""

logger = logging.getLogger("commandbus.ledger")

LINKED = frozenset(
    {
        AuditEventType.OPERATOR_RETRY,
        AuditEventType.OPERATOR_CANCEL,
        AuditEventType.OPERATOR_COMPLETE,
        AuditEventType.OPERATOR_CONTROL,
        AuditEventType.COMMENTED,
        AuditEventType.ASSIGNED,
        AuditEventType.ERASED,
    }
)
"""Entries of a trail that only operators make, so that none may be without a link. A cancellation that
names its actor is linked, too; but workers write such entries as well."""


class Link(msgspec.Struct, frozen=True):
    """One action of an operator. `subject` is the command's domain and id, or the key of an action."""

    number: int
    at: datetime
    kind: str
    subject: str
    digest: str
    previous: str
    hash: str
    salt: str
    """Empty once what the digest is of was erased; not part of the hash."""
    seal: str = UNSEALED
    """Which key the hash was made with, as the beginning of its own hash; empty for none."""


class LedgerProblem(msgspec.Struct, frozen=True):
    """`what` is changed, removed or inserted."""

    what: str
    entry: str
    number: int | None = None


class LedgerReport(msgspec.Struct, frozen=True):
    """What a verification found. Keep `hash` elsewhere, to notice if the whole chain is made anew."""

    links: int
    hash: str
    problems: list[LedgerProblem]
    erased: int
    """Entries whose content was erased by an erasure that is itself linked."""
    forgotten: int
    """Entries of commands that retention has forgotten."""
    open: int
    """Actions in callers' transactions that are committed and will be linked by a worker."""

    @property
    def sound(self) -> bool:
        return not self.problems


_links = msgspec.json.Decoder(Link)


def link_event(
    scope: Scope,
    domain: str,
    command_id: UUID,
    kind: AuditEventType,
    details: Mapping[str, Any] | None = None,
) -> Op[None]:
    """Link the entry that was just written to a command's trail, in the same transaction."""
    yield from link(scope, [(yield from written(scope, domain, command_id, kind, details))])


def written(
    scope: Scope,
    domain: str,
    command_id: UUID,
    kind: AuditEventType,
    details: Mapping[str, Any] | None = None,
) -> Op[Link]:
    """What `link` needs to know of the entry that was just written to a command's trail."""
    trail = yield from scope.store.audit_trail(command_id, domain)
    found = [e for e in trail if e.event_type is kind and details in (None, e.details)]
    return of_event(scope, found[-1])


def of_event(scope: Scope, event: AuditEvent) -> Link:
    """A link that is not in the chain yet."""
    return _unlinked(scope, event.timestamp, str(event.event_type), _subject(event), _content(event))


def of_action(scope: Scope, at: datetime, document: Document) -> Link:
    """A link that is not in the chain yet."""
    return _unlinked(scope, at, ACTION, document.key, document.body.encode())


def _unlinked(scope: Scope, at: datetime, kind: str, subject: str, content: bytes) -> Link:
    salt = scope.new_id().hex
    return Link(0, at, kind, subject, _digest(salt, content), "", "", salt)


def link(scope: Scope, links: Sequence[Link]) -> Op[None]:
    """Add links. Whoever comes second waits for the head, and builds on what the first has written; so
    this is the last thing that a transaction does. A caller's transaction may go on for long: there the
    links are left beside the chain, where nobody waits for them, and workers add them afterwards."""
    if scope.in_callers_transaction:
        for one in links:
            yield from scope.store.put_document(_document(OPEN, str(scope.new_id()), one))
        yield from scope.store.announce(TOPIC)
        return
    key = scope.settings.ledger_key
    while links:
        head = yield from scope.store.get_document(HEAD, "head")
        last = _links.decode(head.body) if head else None
        if last is not None and last.seal not in (UNSEALED, seal_of(key)):
            raise ConfigurationError(
                "What operators do here is sealed with a key, and this program has none or another: "
                "give it ledger_key, or set COMMANDBUS_LEDGER_KEY. Nothing was done."
            )
        chained: list[Link] = []
        for one in links:
            last = _after(last, one, key)
            chained.append(last)
        bare = msgspec.json.encode(msgspec.structs.replace(chained[-1], salt="")).decode()
        version = head.version if head else 0
        if (yield from scope.store.put_document(Document(HEAD, "head", version, "", None, bare))):
            for one in chained:
                yield from scope.store.put_document(_document(KIND, _key(one), one))
            # An anchor outside the store: with `expect`, it shows whether the chain was cut or redone.
            logger.info("link %d: %s", chained[-1].number, chained[-1].hash)
            return


def _after(last: Link | None, link: Link, key: str | None) -> Link:
    number, previous = (last.number + 1, last.hash) if last else (1, "")
    placed = msgspec.structs.replace(link, number=number, previous=previous, seal=seal_of(key))
    return msgspec.structs.replace(placed, hash=_hash(placed, key))


def seal_of(key: str | None) -> str:
    """A name for a key that does not reveal it."""
    return UNSEALED if key is None else hashlib.sha256(b"seal\n" + key.encode()).hexdigest()[:16]


def link_open(scope: Scope) -> Op[int]:
    """Link some of what callers' transactions have left; returns how many were found."""
    page = yield from scope.store.list_documents(OPEN, limit=PAGE)
    if not page:
        return 0
    head = _decoded((yield from scope.store.get_document(HEAD, "head")))
    if head is not None and head.seal not in (UNSEALED, seal_of(scope.settings.ledger_key)):
        return 0  # a program that has the key links them
    yield TOGETHER
    taken: list[Link] = []
    for document in page:
        # Guarded by its version, which a delete is not: others link, too, or erase what it is of.
        if (yield from scope.store.put_document(document)):
            yield from scope.store.delete_document(OPEN, document.key)
            taken.append(_links.decode(document.body))
    yield from link(scope, taken)
    return len(page)


def is_linked(scope: Scope, event: AuditEvent) -> Op[bool]:
    """Whether an entry of a command's trail has its link, in the chain or on its way there. What a
    worker takes from beside the chain meanwhile is found in it."""
    for kind in (OPEN, KIND):
        page = yield from scope.store.list_documents(kind, status=str(event.command_id), limit=1_000)
        for link in (_decoded(document) for document in page):
            if link is not None and _names(link, event):
                return True
    return False


def _names(link: Link, event: AuditEvent) -> bool:
    named = (link.kind, link.subject) == (str(event.event_type), _subject(event))
    return named and link.digest == _digest(link.salt, _content(event))


def unsalt(scope: Scope, domain: str, command_id: UUID) -> Op[None]:
    """Make the digests of a command's entries meaningless: what they are of is being erased. Open links
    first: what somebody takes from there meanwhile is found in the chain."""
    subject = f"{domain} {command_id}"
    for kind in (OPEN, KIND):
        page = yield from scope.store.list_documents(kind, status=str(command_id), limit=1_000)
        for document in page:
            found = _links.decode(document.body)
            if found.subject == subject:
                body = msgspec.json.encode(msgspec.structs.replace(found, salt="")).decode()
                yield from scope.store.put_document(msgspec.structs.replace(document, body=body))


def verify_audit(scope: Scope, *, expect: str | None = None) -> Flow[LedgerReport]:
    """Whether what operators did is on record as they did it: every link fits the one before and the
    entry that it names, and no entry is without a link. With `expect`, that earlier hash must
    still be in the chain. Reads everything that was ever linked, a page at a time; operators may go on
    meanwhile."""
    check = _Check(expect, scope.settings.ledger_key)
    yield from _read_chain(scope, check)
    before: int | None = None
    while entries := (
        yield scope.store.search_audit(AuditFilter(before=before, span=EVERYTHING, limit=PAGE))
    ):
        for entry in entries:
            check.expect_event(entry.event)
        before = entries[-1].id
    yield from _show_all(scope, ACTION, check.expect_action)
    # What was done since the first reading is in these lists, and has its link by now: beside the
    # chain, or in it when somebody took it from there.
    yield from _show_all(scope, OPEN, check.count_open)
    mark = yield scope.store.ledger_mark()
    check.finish((yield from _read_chain(scope, check)), mark)
    return check.report()


def _read_chain(scope: Scope, check: _Check) -> Flow[Document | None]:
    """Read on to the end of the chain. Returns the head as it was before no more was found: that is the
    last link, because both are written at once."""
    while True:
        head: Document | None = yield scope.store.get_document(HEAD, "head")
        page = yield scope.store.list_documents(KIND, after=check.last_key, limit=PAGE)
        for document in page:
            found = check.chain(document)
            if found is not None:
                yield from _compare(scope, check, found)
        if not page:
            return head


def _show_all(scope: Scope, kind: str, see: Callable[[Document], None]) -> Flow[None]:
    after: str | None = None
    while page := (yield scope.store.list_documents(kind, after=after, limit=PAGE)):
        for document in page:
            see(document)
        after = page[-1].key


def _compare(scope: Scope, check: _Check, link: Link) -> Flow[None]:
    if link.kind == ACTION:
        check.compare_action(link, (yield scope.store.get_document(ACTION, link.subject)))
        return
    domain, _, command_id = link.subject.partition(" ")
    trail = yield scope.store.audit_trail(UUID(command_id), domain)
    if link.salt and not check.has_entry(link, trail):
        # An erasure since the link was read has changed both at once.
        again = _decoded((yield scope.store.get_document(KIND, _key(link))))
        link = msgspec.structs.replace(link, salt=again.salt) if again else link
    check.compare_event(link, trail)


class _Check:
    """A verification on its way: it is shown everything in order, and remembers what is wrong."""

    def __init__(self, expect: str | None, key: str | None) -> None:
        if expect is not None and not (isinstance(expect, str) and len(expect) == 64):
            raise InvalidArgumentError(
                "expect must be a hash of 64 digits that an earlier verification returned."
            )
        self._expected = expect
        self._found = expect is None
        self._number, self._hash = 0, ""
        self._key = key
        self._sealed = False
        self._removed_at: datetime | None = None
        """When entries were last removed by an action that is on record."""
        self._missing: list[tuple[Link, str]] = []
        self._asked: set[tuple[str, str]] = set()
        """Running commands that were asked to stop, and by whom."""
        self._canceled: dict[tuple[str, str, datetime], str] = {}
        """Cancellations by a worker or an operator, and in whose name."""
        self._named: Counter[tuple[str, str, datetime]] = Counter()
        self._erasures: set[str] = set()
        self._doubtful: list[tuple[Link, str]] = []
        self._problems: list[LedgerProblem] = []
        self._erased = self._forgotten = self._open = 0
        self.last_key: str | None = None
        """Of the last link that was shown."""

    def chain(self, document: Document) -> Link | None:
        """Whether a link fits the chain; what it says, if it can be read."""
        self.last_key = document.key
        found = _decoded(document)
        if found is None:
            self._problem("changed", f"link {document.key}", None)
            return None
        for missing in range(self._number + 1, found.number)[:PROBLEMS_MAX]:
            self._problem("removed", f"link {missing}", missing)
        if found.seal not in (UNSEALED, seal_of(self._key)):
            raise ConfigurationError(
                f"Link {found.number} is sealed with a key that this program does not have: give it "
                "ledger_key, or set COMMANDBUS_LEDGER_KEY."
            )
        sealed = _hash(found, self._key if found.seal else None)
        is_whole = hmac.compare_digest(sealed, found.hash) and document.key == _key(found)
        is_whole = is_whole and (bool(found.seal) or not self._sealed)
        self._sealed = self._sealed or bool(found.seal)
        if not is_whole:
            self._problem("changed", f"link {found.number}", found.number)
        elif found.number == self._number + 1 and found.previous != self._hash:
            self._problem("changed", f"link {found.number - 1}", found.number - 1)
        self._number, self._hash = found.number, found.hash
        self._found = self._found or found.hash == self._expected
        if not is_whole:
            return None
        self._named[found.kind, found.subject, found.at] += 1
        if found.kind == AuditEventType.ERASED:
            self._erasures.add(found.subject)
        return found

    def compare_event(self, link: Link, trail: list[AuditEvent]) -> None:
        entry = f"{link.kind} of {link.subject} at {link.at.isoformat()}"
        if not trail:
            self._missing.append((link, entry))
            return
        same = [e for e in trail if str(e.event_type) == link.kind and e.timestamp == link.at]
        if not same:
            self._problem("removed", entry, link.number)
        elif not self.has_entry(link, same):
            if not link.salt and same[0].details.get("erased") is True:
                self._doubtful.append((link, entry))
            else:
                self._problem("changed", entry, link.number)

    @staticmethod
    def has_entry(link: Link, trail: list[AuditEvent]) -> bool:
        return any(_digest(link.salt, _content(event)) == link.digest for event in trail)

    def compare_action(self, link: Link, action: Document | None) -> None:
        if action is None:
            self._problem("removed", f"action {link.subject}", link.number)
        elif _digest(link.salt, action.body.encode()) != link.digest:
            self._problem("changed", f"action {link.subject}", link.number)
        elif action.status in REMOVALS:
            self._removed_at = max(link.at, self._removed_at or link.at)
        elif action.status == CANCEL:
            said = msgspec.json.decode(action.body)
            self._asked.add((said["subject"], said["actor"]))

    def finish(self, head: Document | None, mark: int | None) -> None:
        """After the last link: what the head remembers, and what only an erasure, or a link that came
        later, explains."""
        last = _links.decode(head.body) if head else None
        newest = max(last.number if last else 0, mark or 0)
        if newest > self._number:
            for missing in range(self._number + 1, newest + 1)[:PROBLEMS_MAX]:
                self._problem("removed", f"link {missing}", missing)
        elif (last.hash if last else "") != self._hash:
            self._problem("changed", f"link {self._number}", self._number)
        if self._key is not None and self._number and not self._sealed:
            # Links from before there was a key are covered by the first sealed one after them.
            self._problem("changed", f"link {self._number}, which no key has sealed", self._number)
        if not self._found:
            self._problem("changed", f"the chain: it does not contain {self._expected}", None)
        for link, entry in self._doubtful:
            if link.subject in self._erasures:
                self._erased += 1
            else:
                self._problem("changed", entry, link.number)
        for link, entry in self._missing:
            if self._removed_at is not None and link.at <= self._removed_at:
                self._forgotten += 1
            else:
                self._problem("removed", entry, link.number)
        for (kind, subject, at), count in self._named.items():
            if (subject, self._canceled.get((kind, subject, at))) in self._asked:
                continue
            for _ in range(-count):
                self._problem("inserted", f"{kind} of {subject} at {at.isoformat()}", None)

    def expect_event(self, event: AuditEvent) -> None:
        entry = (str(event.event_type), _subject(event), event.timestamp)
        if event.event_type in LINKED:
            self._expect(*entry)
        elif event.event_type is AuditEventType.CANCELED and event.details.get("actor"):
            self._canceled[entry] = str(event.details["actor"])
            self._expect(*entry)
        elif event.details.get("operator") or event.details.get("actor"):
            self._expect(*entry)  # only operators' entries name one

    def expect_action(self, document: Document) -> None:
        self._expect(ACTION, document.key, _moment_of(document.key))

    def _expect(self, kind: str, subject: str, at: datetime) -> None:
        """An entry of an operator must have its link."""
        self._named[kind, subject, at] -= 1

    def count_open(self, document: Document) -> None:
        self._open += 1
        if (found := _decoded(document)) is not None:
            self._named[found.kind, found.subject, found.at] += 1

    def _problem(self, what: str, entry: str, number: int | None) -> None:
        if len(self._problems) < PROBLEMS_MAX:
            self._problems.append(LedgerProblem(what, entry, number))

    def report(self) -> LedgerReport:
        return LedgerReport(
            self._number, self._hash, self._problems, self._erased, self._forgotten, self._open
        )


def _document(kind: str, key: str, link: Link) -> Document:
    """A new one; its status is what an erasure finds it by."""
    status = ACTION if link.kind == ACTION else link.subject.partition(" ")[2]
    return Document(kind, key, 0, status, None, msgspec.json.encode(link).decode())


def _key(link: Link) -> str:
    return f"{link.number:016d}"


def _decoded(document: Document | None) -> Link | None:
    try:
        return _links.decode(document.body) if document else None
    except msgspec.DecodeError:
        return None


def _subject(event: AuditEvent) -> str:
    return f"{event.domain} {event.command_id}"


def _content(event: AuditEvent) -> bytes:
    """What of an entry must not change, in one form for all engines."""
    return msgspec.json.encode(event.details, order="sorted")


def _digest(salt: str, content: bytes) -> str:
    return hashlib.sha256(salt.encode() + b"\n" + content).hexdigest()


def _hash(link: Link, key: str | None) -> str:
    parts = [link.number, link.at.isoformat(), link.kind, link.subject, link.digest, link.previous]
    content = msgspec.json.encode([*parts, link.seal])
    if key is None:
        return hashlib.sha256(content).hexdigest()
    return hmac.new(key.encode(), content, hashlib.sha256).hexdigest()


def _moment_of(key: str) -> datetime:
    """When an action was put on record, by the key of its document."""
    stamp = key.partition("-")[0]
    try:
        return as_datetime(int(stamp, 16))
    except (ValueError, OverflowError):
        return as_datetime(0)
