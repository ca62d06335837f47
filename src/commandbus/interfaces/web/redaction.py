"""Secrets in payloads are not shown: values under telling keys are replaced before anybody looks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from commandbus.domain.audit import AuditEvent
from commandbus.domain.command import CommandRecord

MASK = "••••••"
DEFAULT_KEYS = (
    "password",
    "passwd",
    "secret",
    "token",
    "authorization",
    "api_key",
    "apikey",
    "private_key",
    "card_number",
    "cvv",
    "iban",
    "ssn",
)


class Redaction:
    """Hides values whose key contains one of the names; case, dashes and underscores do not matter."""

    def __init__(self, keys: Iterable[str] = DEFAULT_KEYS) -> None:
        names = sorted({_plain(key) for key in keys if _plain(key)})
        self._secret = re.compile("|".join(map(re.escape, names))) if names else None

    def is_secret(self, key: str) -> bool:
        return self._secret is not None and bool(self._secret.search(_plain(key)))

    def hide(self, value: Any) -> Any:
        """A copy in which secrets are masked."""
        match value:
            case dict():
                return {
                    key: MASK if self.is_secret(str(key)) and part is not None else self.hide(part)
                    for key, part in value.items()
                }
            case list() | tuple():
                return [self.hide(part) for part in value]
            case _:
                return value

    def restore(self, edited: Any, original: Any) -> Any:
        """An edited copy with the masks it still has replaced by what they hid."""
        if edited == MASK:
            return original
        if isinstance(edited, dict) and isinstance(original, dict):
            return {
                key: self.restore(part, original[key])
                if key in original and (part != MASK or self.is_secret(str(key)))
                else part
                for key, part in edited.items()
            }
        if isinstance(edited, list) and isinstance(original, list) and len(edited) == len(original):
            return [self.restore(part, was) for part, was in zip(edited, original, strict=True)]
        return edited

    def record(self, record: CommandRecord) -> CommandRecord:
        error = record.error
        if error is not None and error.details is not None:
            error = msgspec.structs.replace(error, details=self.hide(error.details))
        return msgspec.structs.replace(
            record,
            data=self.hide(record.data),
            result=self.hide(record.result),
            headers=self.hide(record.headers),
            error=error,
        )

    def event(self, event: AuditEvent) -> AuditEvent:
        return msgspec.structs.replace(event, details=self.hide(event.details))


def _plain(key: str) -> str:
    return key.lower().replace("-", "").replace("_", "").replace(" ", "")
