"""Redaction: values under keys that name a secret are replaced by a mask before anything shows them.

A mask comes back when a payload is edited and retried. It stands for the hidden value only in its own
place: a mask that was moved, or that is left over in a changed list, pair or text, is refused. A mask
put elsewhere could otherwise show the value, or hand it to another owner.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from commandbus.domain.audit import AuditEvent
from commandbus.domain.command import CommandRecord
from commandbus.errors import PayloadError

MASK = "••••••"
DEFAULT_KEYS = (
    "password", "passwd", "passphrase", "passcode", "pwd", "secret", "token", "credential",
    "authorization", "cookie", "session_id", "api_key", "access_key", "private_key", "signing_key",
    "encryption_key", "connection_string", "card_number", "credit_card", "cvv", "cvc", "iban", "ssn",
    "social_security",
)  # fmt: skip
"""Hidden wherever a key contains one of them."""
DEFAULT_WORDS = frozenset(("pin", "pan", "otp", "pass", "jwt", "dsn"))
"""Hidden where one of them is a whole word of a key: many harmless words contain their letters."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NAMES = ("name", "key", "field", "header")
_VALUE = "value"
_SEPARATORS = re.compile(r"([\s:=;,&/|])")
_TEXT_DEPTH_MAX = 3
_NOTHING = object()


class Redaction:
    """Hides the values of keys that contain one of the default names or of `more`; case, dashes,
    underscores and blanks do not matter."""

    def __init__(self, more: Iterable[str] = ()) -> None:
        names = sorted({_plain(key) for key in (*DEFAULT_KEYS, *more) if _plain(key)})
        self._secret = re.compile("|".join(map(re.escape, names)))

    def is_secret(self, key: str) -> bool:
        if self._secret.search(_plain(key)):
            return True
        return any(word.lower() in DEFAULT_WORDS for word in _WORD.findall(key))

    def hide(self, value: Any, depth: int = _TEXT_DEPTH_MAX) -> Any:
        """A copy in which secrets are masked."""
        match value:
            case dict():
                pair = self._is_secret_pair(value)
                return {
                    key: MASK
                    if part is not None and (self.is_secret(str(key)) or (pair and key == _VALUE))
                    else self.hide(part, depth)
                    for key, part in value.items()
                }
            case [str(name), part] if part is not None and self.is_secret(name):
                return [name, MASK]
            case list() | tuple():
                return [self.hide(part, depth) for part in value]
            case str() if depth and value.lstrip()[:1] in ("{", "["):
                return self._hide_document(value, depth - 1)
            case _:
                return value

    def _is_secret_pair(self, value: dict[Any, Any]) -> bool:
        """Whether it is `{"name": "password", "value": …}` or the like."""
        return _VALUE in value and any(
            isinstance(label := value.get(name), str) and self.is_secret(label) for name in _NAMES
        )

    def _hide_document(self, text: str, depth: int) -> str:
        """JSON within text; the text as it is when nothing in it is hidden."""
        try:
            document = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return text
        hidden = self.hide(document, depth)
        return text if hidden == document else msgspec.json.encode(hidden).decode()

    def hide_label(self, text: str) -> str:
        """A unique key or a tag; `token:abc` and `token=abc` become `token:••••••`."""
        parts = _SEPARATORS.split(text)
        for index in range(0, len(parts) - 2, 2):
            if parts[index + 1] in (":", "=") and self.is_secret(parts[index]):
                parts[index + 2] = MASK
        return "".join(parts)

    def restore(self, edited: Any, original: Any, path: str = "data") -> Any:
        """An edited copy with its masks replaced by the values that they hide. Raises PayloadError
        for a mask that is not in its place."""
        if original is _NOTHING:
            return _without_masks(edited, path)
        hidden = self.hide(original)
        if _same(edited, hidden):
            return original
        if isinstance(edited, dict) and isinstance(original, dict):
            return {
                key: self._restore_entry(key, edited, original, hidden, f"{path}.{key}")
                for key in edited
            }
        if isinstance(edited, list) and isinstance(original, list) and len(edited) == len(original):
            # An entry that was changed may be another one that was moved here.
            return [
                was if _same(part, shown) else _without_masks(part, f"{path}[{index}]")
                for index, (part, was, shown) in enumerate(zip(edited, original, hidden, strict=True))
            ]
        return _without_masks(edited, path)

    def _restore_entry(
        self,
        key: str,
        edited: dict[str, Any],
        original: dict[str, Any],
        hidden: dict[str, Any],
        path: str,
    ) -> Any:
        part = edited[key]
        if hidden.get(key) != MASK or original[key] == MASK:
            return self.restore(part, original.get(key, _NOTHING), path)
        is_same_pair = all(edited.get(name) == original.get(name) for name in _NAMES)
        if part == MASK and (self.is_secret(key) or is_same_pair):
            return original[key]
        return _without_masks(part, path)

    def record(self, record: CommandRecord) -> CommandRecord:
        error = record.error
        if error is not None and error.details is not None:
            error = msgspec.structs.replace(error, details=self.hide(error.details))
        key, group = record.unique_key, record.group_key
        return msgspec.structs.replace(
            record,
            data=self.hide(record.data),
            result=self.hide(record.result),
            headers=self.hide(record.headers),
            error=error,
            unique_key=None if key is None else self.hide_label(key),
            group_key=None if group is None else self.hide_label(group),
            tags=tuple(self.hide_label(tag) for tag in record.tags),
        )

    def event(self, event: AuditEvent) -> AuditEvent:
        return msgspec.structs.replace(event, details=self.hide(event.details))


def _same(one: Any, other: Any) -> bool:
    """As JSON, where 1 is neither true nor 1.0."""
    encode = msgspec.json.encode
    return encode(one, order="deterministic") == encode(other, order="deterministic")


def _without_masks(value: Any, path: str) -> Any:
    """The value, or PayloadError when a mask is anywhere in it."""
    match value:
        case dict():
            for key, part in value.items():
                _without_masks(part, f"{path}.{key}")
        case list():
            for index, part in enumerate(value):
                _without_masks(part, f"{path}[{index}]")
        case str() if MASK in value:
            raise _misplaced(path)
        case _:
            pass
    return value


def _misplaced(path: str) -> PayloadError:
    return PayloadError(
        f"{path[:120]} has the mask of a hidden value that belongs elsewhere: leave what surrounds a "
        "hidden value as it is, or enter the value itself."
    )


def _plain(key: str) -> str:
    return key.lower().replace("-", "").replace("_", "").replace(" ", "")
