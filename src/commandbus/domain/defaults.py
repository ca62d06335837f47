"""Defaults of a command: options that its declaration gives to every request of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypedDict, TypeVar

import msgspec

from commandbus.domain.command import SendRequest
from commandbus.domain.limits import as_required_tags
from commandbus.domain.moment import Duration, as_seconds
from commandbus.domain.names import as_tags
from commandbus.domain.priority import Priority
from commandbus.errors import ConfigurationError, InvalidArgumentError

KeyOf = Callable[[Any], str | None]
"""From a payload to a key, or None for none."""
Request = TypeVar("Request", bound=SendRequest[Any])


class DefaultOptions(TypedDict, total=False):
    """What may be said of all requests of a command; an option of a send comes first."""

    priority: Priority | None
    expires: Duration | None
    group_key: KeyOf | None
    unique_key: KeyOf | None
    tags: Iterable[str]
    requires: Iterable[str]


class Defaults(msgspec.Struct, frozen=True):
    """The options of a command that were declared, checked."""

    priority: Priority | None = None
    expires: float | None = None
    group_key: KeyOf | None = None
    unique_key: KeyOf | None = None
    tags: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: Any) -> Defaults | None:
        """Those among the options of a declaration; None when there are none. Raises
        InvalidArgumentError."""
        given = {name: options[name] for name in DefaultOptions.__annotations__ if name in options}
        if not any(value is not None and value != () for value in given.values()):
            return None
        for name in ("group_key", "unique_key"):
            if given.get(name) is not None and not callable(given[name]):
                raise InvalidArgumentError(
                    f"{name} of a declaration must be a function of the payload, not {given[name]!r}."
                )
        expires = given.get("expires")
        return cls(
            given.get("priority"),
            None if expires is None else as_seconds(expires, "expires", minimum=0.001),
            given.get("group_key"),
            given.get("unique_key"),
            tuple(as_tags(given.get("tags") or ())),
            tuple(as_required_tags(given.get("requires") or ())),
        )

    def apply(self, request: Request) -> Request:
        """The request, with these options where it names none."""
        changes: dict[str, Any] = {}
        for name in ("group_key", "unique_key"):
            if (key_of := getattr(self, name)) is not None and getattr(request, name) is None:
                changes[name] = _asked(name, key_of, request)
        if self.expires is not None and request.expires is None and request.expires_at is None:
            changes["expires"] = self.expires
        if self.priority is not None and request.priority is None:
            changes["priority"] = self.priority
        if self.tags and not request.tags:
            changes["tags"] = self.tags
        if self.requires and not request.requires:
            changes["requires"] = self.requires
        return msgspec.structs.replace(request, **changes) if changes else request


def _asked(name: str, key_of: KeyOf, request: SendRequest[Any]) -> str | None:
    try:
        return key_of(request.data)
    except Exception as error:  # the user's own function
        raise ConfigurationError(
            f"{name} of {request.domain}.{request.command_type} raised {type(error).__name__} for this "
            "payload; nothing was sent."
        ) from error
