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
from commandbus.domain.batch import BatchRecord
from commandbus.domain.command import CommandRecord
from commandbus.domain.process.values import ProcessEvent, ProcessRecord
from commandbus.domain.schedule import ScheduleRecord
from commandbus.errors import PayloadError
from commandbus.store.records import AuditEntry

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
_SIGNS = re.compile(r"[\W_]+")
_NAMES = frozenset(("name", "key", "field", "header"))
_VALUES = frozenset(("value", "val"))
_SEPARATORS = re.compile(r"([\s:=;,&/|])")
_TEXT_DEPTH_MAX = 3
_NOTHING = object()


class Redaction:
    """Hides the values of keys that contain one of the default names or of `more`; case and
    signs between letters do not matter."""

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
                is_pair = any(isinstance(n, str) and self.is_secret(n) for n in _labels(value))
                return {
                    key: MASK
                    if part is not None
                    and (self.is_secret(str(key)) or (is_pair and str(key).lower() in _VALUES))
                    else self.hide(part, depth)
                    for key, part in value.items()
                }
            case [name, part] if part is not None and self._is_secret_pair(value):
                return [name, MASK]
            case list() | tuple():
                return [self.hide(part, depth) for part in value]
            case str() if depth and value.lstrip()[:1] in ("{", "[", '"'):
                return self._hide_document(value, depth - 1)
            case _:
                return value

    def _is_secret_pair(self, value: Any) -> bool:
        """Whether it is `["password", …]`."""
        return len(value) == 2 and isinstance(value[0], str) and self.is_secret(value[0])

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
            return without_masks(edited, path)
        hidden = self.hide(original)
        if _same(edited, hidden):
            return original
        if isinstance(edited, dict) and isinstance(original, dict):
            return {
                key: self._restore_entry(key, edited, original, hidden, f"{path}.{key}")
                for key in edited
            }
        is_list = isinstance(edited, list) and isinstance(original, list)
        if is_list and len(edited) == len(original) and not self._is_secret_pair(original):
            # An entry that was changed may be another one that was moved here.
            return [
                was if _same(part, shown) else without_masks(part, f"{path}[{index}]")
                for index, (part, was, shown) in enumerate(zip(edited, original, hidden, strict=True))
            ]
        return without_masks(edited, path)

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
        if part == MASK and (self.is_secret(key) or _labels(edited) == _labels(original)):
            return original[key]
        return without_masks(part, path)

    def shown(self, value: Any) -> Any:
        """A record of any kind as it may be shown; what carries no payload, as it is."""
        match value:
            case CommandRecord():
                return self.record(value)
            case AuditEvent():
                return self.event(value)
            case AuditEntry():
                return msgspec.structs.replace(value, event=self.event(value.event))
            case ProcessRecord():
                return self.process(value)
            case ProcessEvent():
                return msgspec.structs.replace(value, details=self.hide(value.details))
            case BatchRecord():
                return self.batch(value)
            case ScheduleRecord():
                return self.schedule(value)
            case _:
                return value

    def record(self, record: CommandRecord) -> CommandRecord:
        return msgspec.structs.replace(
            record,
            data=self.hide(record.data),
            result=self.hide(record.result),
            headers=self.hide(record.headers),
            error=self._error(record.error),
            **self._labels_of(record),
        )

    def event(self, event: AuditEvent) -> AuditEvent:
        return msgspec.structs.replace(event, details=self.hide(event.details))

    def batch(self, batch: BatchRecord) -> BatchRecord:
        return msgspec.structs.replace(batch, custom_data=self.hide(batch.custom_data))

    def process(self, record: ProcessRecord) -> ProcessRecord:
        state, error = self.hide(record.state), self._error(record.error)
        return msgspec.structs.replace(record, state=state, error=error)

    def schedule(self, record: ScheduleRecord) -> ScheduleRecord:
        schedule, options = record.schedule, record.schedule.options
        if options is not None:
            options = msgspec.structs.replace(
                options, headers=self.hide(options.headers), **self._labels_of(options)
            )
        schedule = msgspec.structs.replace(schedule, data=self.hide(schedule.data), options=options)
        return msgspec.structs.replace(record, schedule=schedule)

    def _error(self, error: Any) -> Any:
        if error is None or error.details is None:
            return error
        return msgspec.structs.replace(error, details=self.hide(error.details))

    def _labels_of(self, record: Any) -> dict[str, Any]:
        """The keys and tags of a command or of a schedule's commands."""
        key, group = record.unique_key, record.group_key
        return {
            "unique_key": None if key is None else self.hide_label(key),
            "group_key": None if group is None else self.hide_label(group),
            "tags": tuple(self.hide_label(tag) for tag in record.tags),
        }


def _same(one: Any, other: Any) -> bool:
    """As JSON, where 1 is neither true nor 1.0."""
    encode = msgspec.json.encode
    return encode(one, order="deterministic") == encode(other, order="deterministic")


def _labels(value: dict[Any, Any]) -> list[Any]:
    """What names the value of a pair such as `{"name": "password", "value": …}`."""
    return [part for key, part in value.items() if str(key).lower() in _NAMES]


def without_masks(value: Any, path: str = "data") -> Any:
    """The value, or PayloadError when a mask is anywhere in it."""
    match value:
        case dict():
            for key, part in value.items():
                without_masks(part, f"{path}.{key}")
        case list():
            for index, part in enumerate(value):
                without_masks(part, f"{path}[{index}]")
        case str() if MASK in value:
            raise PayloadError(
                f"{path[:120]} has the mask of a hidden value that belongs elsewhere: leave what "
                "surrounds a hidden value as it is, or enter the value itself."
            )
        case _:
            pass
    return value


def _plain(key: str) -> str:
    return _SIGNS.sub("", key.lower())
