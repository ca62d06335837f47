"""The ledger: a chain over what operators did, in which every link carries the hash of the one before.

A link names an entry of a command's trail, or of the list of actions, and a salted digest of it. Links
outlive the entries: retention adds a link of its own for each linked command that it removes, and
erasure removes the salt, after which the digest reveals nothing. `verify_audit` (verification.py) finds
entries and links that were changed, removed or added. A writer of the tables could compute all later
links again; with `ledger_key`, hashes are HMACs by a key that is not in the store. A cut tail is found
by the store's own mark of the last number, where roles keep that out of reach, or by a hash from the
log given as `expect`. No number is used twice, so the gap stays. A link that cannot be read is reported
by `verify_audit` and stops no other action; nor does one with the seal of another key, where the
program's own key has sealed an earlier link. Only operators' actions are linked: settles never touch
the one document that all links go through, nor do callers' transactions.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from commandbus.domain.audit import AuditEvent, AuditEventType
from commandbus.domain.moment import as_datetime
from commandbus.errors import ConfigurationError
from commandbus.operations.scope import Scope
from commandbus.store.documents import Document
from commandbus.store.op import Log, Op

KIND, HEAD, OPEN = "ledger", "ledger.head", "ledger.open"
TOPIC = "commandbus.ledger"
ACTION = "action"
PAGE = 500
CANCEL = "cancel"
"""The action of asking a running command to stop; a worker may then cancel it in that name."""
FORGOTTEN = "forgotten"
"""The kind of a link that names a command whose trail retention or a purge removed. A missing trail
that no such link names was removed by other means."""
ALL = "*"
UNSEALED = ""
NUMBER_DIGITS = 16
NUMBER_MAX = 10**15
"""Higher numbers are not believed: whatever another program writes, later ones have room."""

logger = logging.getLogger("commandbus.ledger")


class Link(msgspec.Struct, frozen=True):
    """One action of an operator. `subject` is the command's domain and id, or the key of an action."""

    number: int
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    kind: str
    subject: str
    digest: str
    previous: str
    hash: str
    salt: str
    """Empty once what the digest is of was erased; not part of the hash."""
    seal: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{16})?$")] = UNSEALED
    """Which key the hash was made with, as the beginning of its own hash; empty for none."""


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
    return _unlinked(
        scope, event.timestamp, str(event.event_type), subject_of(event), content_of(event)
    )


def of_action(scope: Scope, at: datetime, document: Document) -> Link:
    """A link that is not in the chain yet."""
    return _unlinked(scope, at, ACTION, document.key, document.body.encode())


def link_forgotten(scope: Scope, subjects: Iterable[str]) -> Op[None]:
    """Put on record whose trails this transaction removed. A subject is a domain and a command id, with
    ALL in place of an id for all commands of a domain, and in place of a domain for all domains."""
    now = as_datetime((yield from scope.store.now()))
    yield from link(scope, [_unlinked(scope, now, FORGOTTEN, one, b"") for one in subjects])


def _unlinked(scope: Scope, at: datetime, kind: str, subject: str, content: bytes) -> Link:
    salt = scope.new_id().hex
    return Link(0, at, kind, subject, digest_of(salt, content), "", "", salt)


def link(scope: Scope, links: Sequence[Link]) -> Op[None]:
    """Add links. The second of two writers waits for the head, and builds on what the first has
    written; so this is the last thing that a transaction does. A caller's transaction may go on for
    long: there the links are left beside the chain, where they hold up no other, and workers add them
    afterwards."""
    if scope.in_callers_transaction:
        for one in links:
            yield from scope.store.put_document(_document(OPEN, str(scope.new_id()), one))
        yield from scope.store.announce(TOPIC)
        return
    key = scope.settings.ledger_key
    while links:
        head = yield from scope.store.get_document(HEAD, "head")
        last = decoded(head) or (yield from _last_readable(scope))
        if is_foreign(last, key):
            last = yield from last_sealed(scope, key)
            if last is None:
                raise ConfigurationError(
                    "What operators do here is sealed with a key, and this program has none or "
                    "another: give it ledger_key, or set COMMANDBUS_LEDGER_KEY. Nothing was done."
                )
        number = yield from _last_number(scope, last)
        chained: list[Link] = []
        for one in links:
            number += 1
            last = _after(last, one, key, number)
            chained.append(last)
        bare = msgspec.json.encode(msgspec.structs.replace(chained[-1], salt="")).decode()
        version = head.version if head else 0
        if (yield from scope.store.put_document(Document(HEAD, "head", version, "", None, bare))):
            for one in chained:
                yield from scope.store.put_document(_document(KIND, key_of(one), one))
            # An anchor outside the store: with `expect`, it shows whether the chain was cut or redone.
            yield Log(logger.name, f"link {chained[-1].number}: {chained[-1].hash}")
            return


def _last_readable(scope: Scope) -> Op[Link | None]:
    """The newest link that can be read: the first action has no head, and a head may be damaged."""
    page = yield from scope.store.list_documents(KIND, limit=PAGE, backwards=True)
    return next((one for one in map(decoded, page) if one is not None), None)


def is_foreign(link: Link | None, key: str | None) -> bool:
    """Whether a link has the seal of a key that is not this one."""
    return link is not None and link.seal not in (UNSEALED, seal_of(key))


def last_sealed(scope: Scope, key: str | None) -> Op[Link | None]:
    """The newest link that this key has sealed. A chain has one key, so that later seals of others are
    false; only a program with the key can tell."""
    after: str | None = None
    while key is not None:
        page = yield from scope.store.list_documents(KIND, after=after, limit=PAGE, backwards=True)
        for one in map(decoded, page):
            if one is not None and one.seal == seal_of(key) and one.hash == hash_of(one, key):
                return one
        if not page:
            break
        after = page[-1].key
    return None


def _last_number(scope: Scope, last: Link | None) -> Op[int]:
    """The highest number that is known to have been used. After a head was moved back, new links must
    neither take the numbers of those that were cut off nor collide with those that are left."""
    page = yield from scope.store.list_documents(KIND, limit=1, backwards=True)
    mark = yield from scope.store.ledger_mark()
    known = (last.number if last else 0, mark or 0, *(number_of(one.key) for one in page))
    return max(number if number < NUMBER_MAX else 0 for number in known)


def _after(last: Link | None, link: Link, key: str | None, number: int) -> Link:
    previous = last.hash if last else ""
    placed = msgspec.structs.replace(link, number=number, previous=previous, seal=seal_of(key))
    return msgspec.structs.replace(placed, hash=hash_of(placed, key))


def seal_of(key: str | None) -> str:
    """A name for a key that does not reveal it."""
    return UNSEALED if key is None else hashlib.sha256(b"seal\n" + key.encode()).hexdigest()[:16]


def link_open(scope: Scope) -> Op[int]:
    """Link some of what callers' transactions have left; returns how many. What cannot be read is left
    where it is, for `verify_audit` to report; and a database role that may not link takes none."""
    found = yield from _some_open(scope)
    if not found:
        return 0
    head, key = decoded((yield from scope.store.get_document(HEAD, "head"))), scope.settings.ledger_key
    if is_foreign(head, key) and (yield from last_sealed(scope, key)) is None:
        return 0  # a program that has the key links them
    taken: list[Link] = []
    for document, one in found:
        # Guarded by its version, which a delete is not: others link, too, or erase what it is of.
        if (yield from scope.store.put_document(document)):
            yield from scope.store.delete_document(OPEN, document.key)
            taken.append(one)
    yield from link(scope, taken)
    return len(taken)


def _some_open(scope: Scope) -> Op[list[tuple[Document, Link]]]:
    """Those of the first page that has any that can be read."""
    after: str | None = None
    while page := (yield from scope.store.list_documents(OPEN, after=after, limit=PAGE)):
        read = ((document, decoded(document)) for document in page)
        if found := [(document, one) for document, one in read if one is not None]:
            return found
        after = page[-1].key
    return []


def is_linked(scope: Scope, event: AuditEvent) -> Op[bool]:
    """Whether an entry of a command's trail has its link, in the chain or on its way there. What a
    worker takes from beside the chain meanwhile is found in it."""
    for kind in (OPEN, KIND):
        page = yield from scope.store.list_documents(kind, status=str(event.command_id), limit=1_000)
        for link in (decoded(document) for document in page):
            if link is not None and _names(link, event):
                return True
    return False


def _names(link: Link, event: AuditEvent) -> bool:
    named = (link.kind, link.subject) == (str(event.event_type), subject_of(event))
    return named and link.digest == digest_of(link.salt, content_of(event))


def unsalt(scope: Scope, domain: str, command_id: UUID) -> Op[None]:
    """Make the digests of a command's entries meaningless: what they are of is being erased. Open links
    first: a link that is moved meanwhile is found in the chain."""
    subject = f"{domain} {command_id}"
    for kind in (OPEN, KIND):
        page = yield from scope.store.list_documents(kind, status=str(command_id), limit=1_000)
        for document in page:
            found = decoded(document)
            if found is not None and found.subject == subject:
                body = msgspec.json.encode(msgspec.structs.replace(found, salt="")).decode()
                yield from scope.store.put_document(msgspec.structs.replace(document, body=body))


def _document(kind: str, key: str, link: Link) -> Document:
    """A new one; its status is what an erasure finds it by."""
    status = ACTION if link.kind == ACTION else link.subject.partition(" ")[2]
    return Document(kind, key, 0, status, None, msgspec.json.encode(link).decode())


def key_of(link: Link) -> str:
    return f"{link.number:0{NUMBER_DIGITS}d}"


def number_of(key: str) -> int:
    """The number in the key of a link's document; 0 in a key that no link has."""
    return int(key) if key.isascii() and key.isdecimal() and len(key) == NUMBER_DIGITS else 0


def decoded(document: Document | None) -> Link | None:
    """None also for a document that cannot be read."""
    try:
        return _links.decode(document.body) if document else None
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def subject_of(event: AuditEvent) -> str:
    return f"{event.domain} {event.command_id}"


def content_of(event: AuditEvent) -> bytes:
    """What of an entry must not change, in one form for all engines."""
    return msgspec.json.encode(event.details, order="sorted")


def digest_of(salt: str, content: bytes) -> str:
    return hashlib.sha256(salt.encode() + b"\n" + content).hexdigest()


def hash_of(link: Link, key: str | None) -> str:
    parts = [link.number, link.at.isoformat(), link.kind, link.subject, link.digest, link.previous]
    content = msgspec.json.encode([*parts, link.seal])
    if key is None:
        return hashlib.sha256(content).hexdigest()
    return hmac.new(key.encode(), content, hashlib.sha256).hexdigest()
