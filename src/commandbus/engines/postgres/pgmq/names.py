"""Names of queues: checked, because they become part of statements, and made from domains."""

from __future__ import annotations

import hashlib
import re

from commandbus.domain.priority import LABELS
from commandbus.errors import InvalidArgumentError

LENGTH_MAX = 47
"""PGMQ's own limit."""

_QUEUE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,46}\Z")
_PLAIN_DOMAIN = re.compile(r"[a-z_][a-z0-9_]{0,29}\Z")
_HASH_LENGTH, _STEM_LENGTH = 8, 21


def check_queue(name: object) -> str:
    """The name of a queue, or InvalidArgumentError."""
    if isinstance(name, str) and _QUEUE.match(name):
        return name
    raise InvalidArgumentError(
        f"The queue {name!r} has no valid name: use up to {LENGTH_MAX} letters, digits and "
        "underscores, beginning with a letter or underscore."
    )


def queue_of(domain: str, priority: int, *, replies: bool = False) -> str:
    """The queue of a domain's commands, or of replies to it, at one priority."""
    kind = "replies" if replies else "commands"
    if priority == LABELS["normal"]:
        band = ""
    else:
        band = f"_p{priority}" if priority >= 0 else f"_n{-priority}"
    return f"{_stem(domain)}__{kind}{band}"


def quoted_table(prefix: str, queue: str) -> str:
    """The table of a queue, as PGMQ names it."""
    return f'pgmq."{prefix}_{check_queue(queue).lower()}"'


def _stem(domain: str) -> str:
    """A domain as the beginning of a queue's name: itself, where PGMQ takes it; else readable, with
    a hash that tells `Orders` from `orders`, whose tables PGMQ would not."""
    if _PLAIN_DOMAIN.match(domain):
        return domain
    digest = hashlib.sha256(domain.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{re.sub('[^a-z0-9_]', '_', domain.lower())[:_STEM_LENGTH]}_{digest}"
