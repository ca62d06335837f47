"""A chain: commands one after another, as a process whose steps are data."""

from __future__ import annotations

from typing import Any

import msgspec

from commandbus.domain.command import SendOptions, SendRequest
from commandbus.domain.moment import Duration, as_seconds
from commandbus.domain.process.declaration import END, Process, step
from commandbus.domain.reply import Reply
from commandbus.errors import InvalidArgumentError

LINKS_MAX = 100


class Link(msgspec.Struct, omit_defaults=True):
    """One command of a chain, as it is kept until its turn."""

    domain: str
    command_type: str
    data: Any = None
    priority: str | int | None = None
    delay: float | None = None
    max_attempts: int | None = None
    group_key: str | None = None
    tags: list[str] = []
    requires: list[str] = []
    headers: dict[str, Any] | None = None
    expires: float | None = None


class ChainState(msgspec.Struct, omit_defaults=True):
    links: list[Link]
    results: list[Any] = []
    """Of the commands that have completed, in order."""
    result_as: str | None = None
    """The field of the payload in which a command gets the result of the one before."""


class Chain(Process[ChainState]):
    """Sends its commands one after another, each when the one before has completed. It ends with the
    first one that fails or is canceled, and waits while one is parked."""

    process_type = "commandbus.chain"
    reply_to = "commandbus.chain.replies"

    @step(then=["send", END])
    def send(self, state: ChainState) -> SendRequest:
        done = len(state.results)
        link = state.links[done]
        data = link.data
        if done and state.result_as is not None:
            data = {**(data or {}), state.result_as: state.results[-1]}
        return SendRequest(
            link.domain,
            link.command_type,
            data,
            priority=link.priority,
            delay=link.delay,
            max_attempts=link.max_attempts,
            group_key=link.group_key,
            tags=link.tags,
            requires=link.requires,
            headers=link.headers,
            expires=link.expires,
        )

    @send.reply
    def completed(self, state: ChainState, reply: Reply) -> str:
        """Keep the result, and go on with the next command."""
        state.results.append(reply.result)
        return "send" if len(state.results) < len(state.links) else END

    def result(self, state: ChainState) -> Any:
        return state.results[-1]


_NOT_KEPT = tuple(name for name in SendOptions.__annotations__ if name not in Link.__struct_fields__)
"""Options of a send that a link cannot have: they are the chain's own, or mean a moment."""


def as_link(request: Any, data: Any) -> Link:
    """A request as a link of a chain; `data` is its payload as plain JSON values."""
    if not isinstance(request, SendRequest):
        raise InvalidArgumentError(f"A chain is made of requests, not of {request!r}.")
    for name in _NOT_KEPT:
        if getattr(request, name) is not None:
            raise InvalidArgumentError(f"A command of a chain cannot have {name}=.")
    delay: Duration | None = request.delay
    expires: Duration | None = request.expires
    return Link(
        request.domain,
        request.command_type,
        data,
        request.priority,
        None if delay is None else as_seconds(delay, "delay"),
        request.max_attempts,
        request.group_key,
        list(request.tags),
        list(request.requires),
        request.headers,
        None if expires is None else as_seconds(expires, "expires"),
    )
