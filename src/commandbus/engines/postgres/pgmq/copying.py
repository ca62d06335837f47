"""Messages as lines of COPY's text format: what `pgmq_envelope` and `pgmq_headers` make at the server,
made here for many commands at once."""

from __future__ import annotations

from functools import lru_cache

from commandbus.domain.moment import as_datetime
from commandbus.engines.postgres.copying import escaped
from commandbus.store.inserting import Row

Message = tuple[int, int, Row]
"""Queue and number of a message, and the command that it carries."""


def message_line(message: Message) -> str:
    """Number, visibility, envelope and headers. Names and ids need no quotes of JSON's."""
    _, msg_id, (seq, c, now, due_at) = message
    causation = "" if c.causation_id is None else f'"causation_id": "{c.causation_id}", '
    reply_to = "" if c.reply_to is None else f'"reply_to": "{c.reply_to}", '
    attempts = "" if c.max_attempts is None else f'"max_attempts": {c.max_attempts}, '
    expires = "" if c.expires_at is None else f'"expires_at": "{_moment(c.expires_at)}", '
    tags = "" if c.tags is None else f'"tags": {c.tags}, '
    batch = "" if c.batch_id is None else f'"batch_id": "{c.batch_id}", '
    command_id = str(c.command_id)
    correlation = command_id if c.correlation_id is c.command_id else c.correlation_id
    envelope = (
        f'{{"command_id": "{command_id}", "domain": "{c.domain}", "command_type": "{c.command_type}", '
        f'"correlation_id": "{correlation}", {causation}{reply_to}{attempts}{expires}{tags}{batch}'
        f'"created_at": "{_moment(now)}", "data": {c.data}}}'
    )
    token = f'"commandbus": [{seq}, {msg_id}]}}'
    own = "" if c.headers is None or c.headers == "{}" else f"{c.headers[1:-1]}, "
    headers = "{" + own + token  # the token last, because the last of equal names counts
    return f"{msg_id}\t{_moment(due_at)}\t{escaped(envelope)}\t{escaped(headers)}"


def place_line(message: Message) -> str:
    queue_id, msg_id, (seq, _, _, _) = message
    return f"{seq}\t{queue_id}\t{msg_id}"


@lru_cache(maxsize=64)
def _moment(microseconds: int) -> str:
    """As `pgmq_text_of` writes it; the same for most commands of a send."""
    return as_datetime(microseconds).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
