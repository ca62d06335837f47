"""Options that most sends do not use: a sender whose rate is limited, details of a unique key."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from commandbus.domain.command import SendRequest
from commandbus.domain.names import as_text
from commandbus.domain.unique import Unique
from commandbus.errors import InvalidArgumentError


class RareOptions(msgspec.Struct, frozen=True):
    """What few sends have, and all sends are spared."""

    uniques: list[Unique | None] = []
    senders: dict[tuple[str, str], int] = {}
    """How many commands each sender sends to a domain."""

    @classmethod
    def of(cls, requests: Mapping[int, SendRequest], count: int) -> RareOptions:
        """Of those among `count` requests that have any, by position."""
        senders: dict[tuple[str, str], int] = {}
        uniques: list[Unique | None] = [None] * count
        for position, request in requests.items():
            if request.sender is not None:
                key = (request.domain, as_text(request.sender, "sender"))
                senders[key] = senders.get(key, 0) + 1
            if request.unique is not None:
                if not isinstance(request.unique, Unique):
                    raise InvalidArgumentError(f"unique must be a Unique(…), not {request.unique!r}.")
                uniques[position] = request.unique.checked(request.unique_key)
        return cls(uniques if any(uniques) else [], senders)
