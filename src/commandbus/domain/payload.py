"""JSON in, the same JSON out: what cannot be kept exactly is refused, never altered.

Plain JSON values, msgspec Structs, dataclasses and pydantic models are accepted. Refused are NaN and
infinities, NUL and lone surrogates in text, keys that are not text, whole numbers beyond 64 bits,
nesting deeper than 64 and documents larger than the limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from commandbus.errors import PayloadError

DEPTH_MAX = 64
PAYLOAD_BYTES_MAX = 256 * 1024
HEADER_BYTES_MAX = 8 * 1024
UNLIMITED = 2**62
"""The size is checked later, against the limit of a bus."""
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
_SAFE = (bool, type(None))
_JSON = (dict, list, str, int, float, type(None))

_ALTERED = (bytes, bytearray, set, frozenset, Decimal, UUID, date, time, timedelta)
"""JSON would turn them into something else. As fields of a typed payload they are welcome, because
the handler's type turns them back."""

_Path = Any
"""The place of a value: a name, or a pair of the parent's place and a key. A linked list, because
it is built for every value and read only for the wrong one."""

_encoder = msgspec.json.Encoder()
decode: Callable[[str | bytes], Any] = msgspec.json.Decoder().decode
"""JSON text as plain Python values; the decoder's own method, since every command asks."""
DIGITS = bytes.maketrans(b"0123456789", b"0000000000")
NINETEEN = b"0" * 19
"""So many digits, all written as 0, may be a number beyond 64 bits."""


def encode(value: object, *, what: str = "data", bytes_max: int = PAYLOAD_BYTES_MAX) -> str:
    """`value` as JSON text, or PayloadError with the path of what cannot be kept."""
    if type(value) not in _JSON:
        if isinstance(value, _ALTERED):
            raise _altered(value, what)
        if not isinstance(value, _JSON):
            value = _as_plain(value, what)
    _check(value, what, DEPTH_MAX)
    try:
        encoded = _encoder.encode(value)
    except (UnicodeEncodeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PayloadError(f"{what} cannot be written as JSON: {error}.") from None
    if len(encoded) > bytes_max:
        raise _too_large(len(encoded), what, bytes_max)
    return encoded.decode()


def _too_large(size: int, what: str, bytes_max: int) -> PayloadError:
    return PayloadError(
        f"{what} takes {size:,} bytes as JSON, more than the limit of {bytes_max:,}; "
        "store the document elsewhere and send a reference to it."
    )


def check_size(text: str, bytes_max: int = PAYLOAD_BYTES_MAX, what: str = "data") -> str:
    """JSON text that was encoded before, or PayloadError when it is larger than the limit."""
    # A character takes up to four bytes, so a short text need not be encoded to know.
    if len(text) > bytes_max // 4 and (size := len(text.encode())) > bytes_max:
        raise _too_large(size, what, bytes_max)
    return text


def check_written(written: bytes, what: str) -> None:
    """Raise PayloadError for JSON that holds what databases cannot keep."""
    _check(decode(written), what, DEPTH_MAX)


def leaves_doubt(written: bytes) -> bool:
    """Whether depth or numbers of JSON may be beyond the limits."""
    nested = written.count(b"[") + written.count(b"{")
    return nested > DEPTH_MAX or NINETEEN in written.translate(DIGITS)


class Unreadable(msgspec.Struct, frozen=True):
    """Stands in a record for a value that the store holds and that cannot be read, or that no program
    could send: something else wrote it. As JSON it is `{"unreadable": reason}`."""

    reason: str = msgspec.field(name="unreadable")


def read(text: str | bytes) -> Any:
    """JSON text of the store as plain Python values, or an Unreadable. Depth and range of numbers are
    looked at only where the text leaves room for doubt."""
    try:
        value = decode(text)
        if leaves_doubt(text.encode() if isinstance(text, str) else text):
            _check(value, "it", DEPTH_MAX)
    except RecursionError:
        return Unreadable(f"it is nested deeper than {DEPTH_MAX} levels")
    except (ValueError, TypeError, PayloadError) as error:
        return Unreadable(str(error))
    return value


def _altered(value: object, where: str) -> PayloadError:
    return PayloadError(
        f"{where} is a {type(value).__name__}, which JSON would turn into something else; send it as "
        "text or a list, or as a field of a dataclass, msgspec Struct or pydantic model."
    )


def _as_plain(value: object, what: str) -> object:
    dump = getattr(value, "model_dump", None)  # pydantic, without importing it
    if callable(dump):
        try:
            return dump(mode="json")
        except Exception as error:  # a model's serializers are the user's own code
            raise PayloadError(
                f"{what} of type {type(value).__name__} cannot be written as JSON: its model_dump "
                f"raised {type(error).__name__}."
            ) from error
    try:
        return msgspec.to_builtins(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(
            f"{what} of type {type(value).__name__} is not JSON: {error}. Use JSON values, a "
            "dataclass, a msgspec Struct or a pydantic model."
        ) from None


def _check(value: object, path: _Path, depth: int) -> None:
    kind = type(value)
    if kind is str:
        _check_text(value, path)  # type: ignore[arg-type]
    elif kind is int:
        if not _SMALLEST <= value <= _LARGEST:  # type: ignore[operator]
            raise PayloadError(f"{_render(path)} is a whole number beyond 64 bits; send it as text.")
    elif kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]
            raise PayloadError(
                f"{_render(path)} is {value}, which JSON cannot hold; send null or text."
            )
    elif isinstance(value, _SAFE):
        pass
    elif depth == 0:
        raise PayloadError(f"{_render(path)} is nested deeper than {DEPTH_MAX} levels; flatten it.")
    elif isinstance(value, dict):
        _check_dict(value, path, depth)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check(item, (path, index), depth - 1)
    elif isinstance(value, _ALTERED):
        raise _altered(value, _render(path))
    else:
        _check(_as_plain(value, _render(path)), path, depth - 1)


def _check_dict(value: dict[Any, Any], path: _Path, depth: int) -> None:
    for key, item in value.items():
        if type(key) is not str:
            raise PayloadError(
                f"{_render(path)} has the key {key!r} of type {type(key).__name__}; JSON keys are text."
            )
        if not key.isascii() or "\0" in key:
            _check_text(key, path)
        if type(item) is not str or not item.isascii() or "\0" in item:
            _check(item, (path, key), depth - 1)


def _check_text(text: str, path: _Path) -> None:
    if "\0" in text:
        raise PayloadError(
            f"{_render(path)} contains a NUL character, which databases cannot keep as text."
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise PayloadError(
                f"{_render(path)} contains a lone surrogate, which is not valid Unicode."
            ) from None


def _render(path: _Path) -> str:
    """The path in words, built only when something is wrong."""
    steps: list[str] = []
    while not isinstance(path, str):
        path, step = path
        steps.append(f"[{step}]" if isinstance(step, int) else f".{step}")
    rendered = path + "".join(reversed(steps))
    return rendered if len(rendered) <= 120 else rendered[:120] + "…"
