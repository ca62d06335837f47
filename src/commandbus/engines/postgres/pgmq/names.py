"""Names of queues and of their tables: made from domains, and checked where they are not."""

from __future__ import annotations

import hashlib
import re

from commandbus.domain.names import as_queue
from commandbus.domain.priority import LABELS

_PLAIN_DOMAIN = re.compile(r"[a-z_][a-z0-9_]{0,29}\Z")
_HASH_LENGTH, _STEM_LENGTH = 8, 21


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
    return f'pgmq."{prefix}_{as_queue(queue).lower()}"'


def _stem(domain: str) -> str:
    """A domain as the beginning of a queue's name: itself, where PGMQ takes it; else readable, with
    a hash that tells `Orders` from `orders`, whose tables PGMQ would not."""
    if _PLAIN_DOMAIN.match(domain):
        return domain
    digest = hashlib.sha256(domain.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{re.sub('[^a-z0-9_]', '_', domain.lower())[:_STEM_LENGTH]}_{digest}"
