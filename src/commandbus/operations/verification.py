"""The verification of the ledger: whether what operators did is on record as they did it.

Every link, entry and action may have been written by another program, so that one which cannot be read
or does not fit is a problem of the report and never an exception.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

import msgspec

from commandbus.domain.audit import AuditEvent, AuditEventType, is_of_operator
from commandbus.domain.moment import as_datetime
from commandbus.errors import ConfigurationError, InvalidArgumentError
from commandbus.operations.ledger import (
    ACTION,
    ALL,
    CANCEL,
    FORGOTTEN,
    HEAD,
    KIND,
    OPEN,
    PAGE,
    Link,
    content_of,
    decoded,
    digest_of,
    hash_of,
    is_foreign,
    key_of,
    last_sealed,
    number_of,
    subject_of,
)
from commandbus.operations.scope import Flow, Scope
from commandbus.store.documents import Document
from commandbus.store.records import AuditFilter

EVERYTHING = 2**62
PROBLEMS_MAX = 1_000


class LedgerProblem(msgspec.Struct, frozen=True):
    """`what` is changed, removed or inserted."""

    what: str
    entry: str
    number: int | None = None


class LedgerReport(msgspec.Struct, frozen=True):
    """What a verification found. Keep `hash` elsewhere, to notice if the whole chain is rebuilt."""

    links: int
    hash: str
    problems: list[LedgerProblem]
    erased: int
    """Entries whose content was erased by an erasure that is itself linked."""
    forgotten: int
    """Entries that retention or a purge removed, each named by a link."""
    open: int
    """Actions in callers' transactions that are committed and will be linked by a worker."""

    @property
    def sound(self) -> bool:
        return not self.problems


def verify_audit(scope: Scope, *, expect: str | None = None) -> Flow[LedgerReport]:
    """Whether what operators did is on record as they did it: every link fits the one before and the
    entry that it names, and no entry is without a link. With `expect`, that earlier hash must
    still be in the chain. Reads everything that was ever linked, a page at a time; operators may go on
    meanwhile."""
    check = _Check(expect, scope.settings.ledger_key)
    yield from _check_key(scope)
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
    # chain, or in it when it was taken from there.
    yield from _show_all(scope, OPEN, check.count_open)
    mark = yield scope.store.ledger_mark()
    check.finish((yield from _read_chain(scope, check)), mark)
    return check.report()


def _check_key(scope: Scope) -> Flow[None]:
    """Raises ConfigurationError where the chain is sealed with a key that this program lacks."""
    key, head = scope.settings.ledger_key, decoded((yield scope.store.get_document(HEAD, "head")))
    if head is not None and is_foreign(head, key) and (yield last_sealed(scope, key)) is None:
        raise ConfigurationError(
            f"Link {head.number} is sealed with a key that this program does not have: give it "
            "ledger_key, or set COMMANDBUS_LEDGER_KEY."
        )


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
    if link.kind == FORGOTTEN:
        return
    domain, _, command_id = link.subject.partition(" ")
    try:
        wanted = UUID(command_id)
    except ValueError:
        check.compare_event(link, [])
        return
    trail = yield scope.store.audit_trail(wanted, domain)
    if link.salt and not check.has_entry(link, trail):
        # An erasure since the link was read has changed both at once.
        again = decoded((yield scope.store.get_document(KIND, key_of(link))))
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
        self._number = 0
        self._hash: str | None = ""
        """None after a link that cannot be read."""
        self._key = key
        self._sealed = False
        self._removed: dict[str, datetime] = {}
        """When trails were last removed on record, by their subjects."""
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
        found = decoded(document)
        number = number_of(document.key) if found is None else found.number
        for missing in range(self._number + 1, number)[:PROBLEMS_MAX]:
            self._problem("removed", f"link {missing}", missing)
        if found is None:
            self._problem("changed", f"link {document.key}", number or None)
            self._number, self._hash = max(self._number, number), None
            return None
        is_whole = self._is_whole(document, found)
        follows = self._hash is not None and found.number == self._number + 1
        if not is_whole:
            self._problem("changed", f"link {found.number}", found.number)
        elif follows and found.previous != self._hash:
            self._problem("changed", f"link {found.number - 1}", found.number - 1)
        self._number, self._hash = found.number, found.hash
        self._found = self._found or found.hash == self._expected
        if not is_whole:
            return None
        self._named[found.kind, found.subject, found.at] += 1
        if found.kind == AuditEventType.ERASED:
            self._erasures.add(found.subject)
        elif found.kind == FORGOTTEN:
            self._removed[found.subject] = max(found.at, self._removed.get(found.subject, found.at))
        return found

    def _is_whole(self, document: Document, found: Link) -> bool:
        """Whether a link is as it was written; once one is sealed, all later ones are."""
        if is_foreign(found, self._key) or (self._sealed and not found.seal):
            return False
        self._sealed = self._sealed or bool(found.seal)
        made = hash_of(found, self._key if found.seal else None)
        return hmac.compare_digest(made.encode(), found.hash.encode()) and document.key == key_of(found)

    def compare_event(self, link: Link, trail: list[AuditEvent]) -> None:
        entry = f"{link.kind} of {link.subject} at {link.at.isoformat()}"
        same = [e for e in trail if str(e.event_type) == link.kind and e.timestamp == link.at]
        if not same:
            self._missing.append((link, entry))
        elif not self.has_entry(link, same):
            if not link.salt and same[0].details.get("erased") is True:
                self._doubtful.append((link, entry))
            else:
                self._problem("changed", entry, link.number)

    @staticmethod
    def has_entry(link: Link, trail: list[AuditEvent]) -> bool:
        return any(digest_of(link.salt, content_of(event)) == link.digest for event in trail)

    def compare_action(self, link: Link, action: Document | None) -> None:
        if action is None:
            self._problem("removed", f"action {link.subject}", link.number)
        elif digest_of(link.salt, action.body.encode()) != link.digest:
            self._problem("changed", f"action {link.subject}", link.number)
        elif (said := _action(action)) is not None and said.action == CANCEL:
            self._asked.add((said.subject, said.actor))

    def finish(self, head: Document | None, mark: int | None) -> None:
        """After the last link: what the head remembers, and what only an erasure, or a link that came
        later, explains."""
        last = decoded(head)
        newest = max(last.number if last else 0, mark or 0)
        if newest > self._number:
            for missing in range(self._number + 1, newest + 1)[:PROBLEMS_MAX]:
                self._problem("removed", f"link {missing}", missing)
        elif last is None and head is not None:
            self._problem("changed", "the head of the chain, which cannot be read", None)
        elif self._hash is not None and (last.hash if last else "") != self._hash:
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
            if self._is_removed(link):
                self._forgotten += 1
            else:
                self._problem("removed", entry, link.number)
        for (kind, subject, at), count in self._named.items():
            if (subject, self._canceled.get((kind, subject, at))) in self._asked:
                continue
            for _ in range(-count):
                self._problem("inserted", f"{kind} of {subject} at {at.isoformat()}", None)

    def _is_removed(self, link: Link) -> bool:
        """Whether a later link says that retention or a purge removed its entry."""
        domain = link.subject.partition(" ")[0]
        names = (link.subject, f"{domain} {ALL}", f"{ALL} {ALL}")
        return any(link.at <= self._removed[name] for name in names if name in self._removed)

    def expect_event(self, event: AuditEvent) -> None:
        if not is_of_operator(event.event_type, event.details):
            return
        entry = (str(event.event_type), subject_of(event), event.timestamp)
        if event.event_type is AuditEventType.CANCELED and event.details.get("actor"):
            self._canceled[entry] = str(event.details["actor"])
        self._expect(*entry)

    def expect_action(self, document: Document) -> None:
        self._expect(ACTION, document.key, _moment_of(document.key))

    def _expect(self, kind: str, subject: str, at: datetime) -> None:
        """An entry of an operator must have its link."""
        self._named[kind, subject, at] -= 1

    def count_open(self, document: Document) -> None:
        found = decoded(document)
        if found is None:
            self._problem("changed", f"link {document.key}, which is not in the chain yet", None)
            return
        self._open += 1
        self._named[found.kind, found.subject, found.at] += 1

    def _problem(self, what: str, entry: str, number: int | None) -> None:
        if len(self._problems) < PROBLEMS_MAX:
            self._problems.append(LedgerProblem(what, entry, number))

    def report(self) -> LedgerReport:
        return LedgerReport(
            self._number, self._hash or "", self._problems, self._erased, self._forgotten, self._open
        )


class _Action(msgspec.Struct, frozen=True):
    action: str
    subject: str
    actor: str


def _action(document: Document) -> _Action | None:
    """What the body says; the other columns of the document are no part of its digest."""
    try:
        return msgspec.json.decode(document.body, type=_Action)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def _moment_of(key: str) -> datetime:
    """When an action was put on record, by the key of its document."""
    stamp = key.partition("-")[0]
    try:
        return as_datetime(int(stamp, 16))
    except (ValueError, OverflowError):
        return as_datetime(0)
