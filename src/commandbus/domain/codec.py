"""A Python type as JSON, exactly: what is encoded decodes to an equal value, or is refused.

A value is encoded, decoded again by its type, and compared. So one pass checks every field against its
annotation, and finds what JSON would alter: NaN, text in place of a Decimal, keys that a TypedDict does
not have. Supported is what msgspec supports, and pydantic models, which are never imported here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from commandbus.domain import payload
from commandbus.domain.exact import exact_check
from commandbus.domain.misfit import bounded, describe_misfit
from commandbus.errors import PayloadError

T = TypeVar("T")


class Codec(Generic[T]):
    """Encodes and decodes values of one type. Raises TypeError for a type that has no JSON form."""

    __slots__ = ("_decimals", "_is_exact", "_is_open", "_read", "decode", "encode", "kind")

    decode: Callable[[str], T]
    """JSON text as a value; raises what the validation of the type raises."""
    encode: Callable[[T, str], str]
    """A value as JSON text; its second argument names the value in PayloadError."""
    _is_exact: Callable[[T], bool]

    def __init__(self, kind: Any, *, made_of_arguments: bool = False) -> None:
        """`made_of_arguments`: a plain struct whose instances nothing changes once they are made. Where
        no argument is required, a command that was sent without data is a call without arguments."""
        self.kind = kind
        if kind is Any:
            self.decode, self.encode = payload.decode, _encode_plain
        elif is_pydantic(kind):
            self.decode, self.encode = kind.model_validate_json, self._encode_pydantic
        else:
            self._decimals, self._is_open = _look_inside(kind)
            self._read: Callable[[bytes], T] = msgspec.json.Decoder(kind, dec_hook=_dec_hook).decode
            self.decode, self.encode = self._read, self._encode
            if made_of_arguments and (is_exact := exact_check(kind)) is not None:
                self._is_exact, self.encode = is_exact, self._encode_exact
            if made_of_arguments and not any(field.required for field in msgspec.structs.fields(kind)):
                self.decode = self._decode_or_default

    def _decode_or_default(self, text: str) -> T:
        return self.kind() if text == "null" else self._read(text)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """The type in messages."""
        return "any JSON" if self.kind is Any else getattr(self.kind, "__name__", str(self.kind))

    def convert(self, plain: Any) -> T:
        """Plain JSON values as a value; raises what the validation of the type raises."""
        return self.decode(_write(plain).decode())

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the type."""
        if self.kind is Any:
            return {}
        if is_pydantic(self.kind):
            found: dict[str, Any] = self.kind.model_json_schema()
            return found
        return msgspec.json.schema(self.kind, schema_hook=_schema_hook)

    def _encode_exact(self, value: T, what: str) -> str:
        """What most sends need: `_encode` without decoding what was encoded."""
        if self._is_exact(value):
            try:
                written = _write(value)
            except UnicodeEncodeError:
                return self._encode(value, what)  # says which field it is
            if b"\\u0000" not in written:
                return written.decode()
        return self._encode(value, what)

    def _encode(self, value: T, what: str) -> str:
        try:
            written = _write(value)
            decoded = self._read(written)
        except Exception as error:  # the validation of a type may raise anything
            raise PayloadError(f"{what}: {_reason(value, error)}.") from None
        if not _equal(value, decoded) or (self._decimals and _write(decoded) != written):
            altered = _altered(value, decoded, "$")
            if altered is not None:
                raise PayloadError(f"{what}: {bounded(altered)}.")
        if (
            payload.NINETEEN in written.translate(payload.DIGITS)
            or b"\\u0000" in written
            or (self._is_open and payload.leaves_doubt(written))
        ):
            try:
                payload.check_written(written, "$")
            except PayloadError as error:
                raise PayloadError(f"{what}: {error}") from None
        return written.decode()

    def _encode_pydantic(self, value: Any, what: str) -> str:
        if not isinstance(value, self.kind):
            raise PayloadError(f"{what}: Expected {self.name}, got {type(value).__name__} at $.")
        try:
            # By alias, because that is what the model reads.
            plain = value.model_dump(mode="json", by_alias=True)
            text = payload.encode(plain, what="$", bytes_max=payload.UNLIMITED)
            decoded = self.decode(text)
            altered = None
            if type(decoded) is not type(value) or decoded != value:
                altered = _altered(value, decoded, "$")
        except PayloadError as error:
            raise PayloadError(f"{what}: {error}") from None
        except Exception as error:  # the serializers and the validation of a model may raise anything
            raise PayloadError(f"{what}: {describe_misfit(error)}.") from None
        if altered is not None:
            raise PayloadError(f"{what}: {bounded(altered)}.")
        return text


def is_pydantic(kind: Any) -> bool:
    """Whether a type is a model of pydantic, without importing it."""
    return isinstance(kind, type) and callable(getattr(kind, "model_validate_json", None))


def _encode_plain(value: Any, what: str) -> str:
    try:
        return payload.encode(value, what="$", bytes_max=payload.UNLIMITED)
    except PayloadError as error:
        raise PayloadError(f"{what}: {error}") from None


def _enc_hook(value: Any) -> Any:
    if is_pydantic(type(value)):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _dec_hook(kind: Any, plain: Any) -> Any:
    return kind.model_validate_json(_write(plain))


def _schema_hook(kind: Any) -> dict[str, Any]:
    found: dict[str, Any] = kind.model_json_schema()
    return found


_write = msgspec.json.Encoder(enc_hook=_enc_hook).encode


class _Inside(NamedTuple):
    """What a type holds, as far as its values need a closer look."""

    decimals: bool
    """Numbers with decimals, which a float in JSON would decode to."""
    is_open: bool
    """Values of any depth."""


def _look_inside(kind: Any) -> _Inside:
    """Raises TypeError for a class inside a type that no JSON decodes to: msgspec would only notice
    with the first command."""
    seen: set[int] = set()
    pending: list[object] = [msgspec.inspect.type_info(kind)]
    decimals = is_open = False
    while pending:
        part = pending.pop()
        if id(part) in seen:  # types may contain themselves
            is_open = is_open or isinstance(part, msgspec.inspect.Type)
            continue
        seen.add(id(part))
        decimals = decimals or isinstance(part, msgspec.inspect.DecimalType)
        is_open = is_open or isinstance(part, msgspec.inspect.AnyType | msgspec.inspect.CustomType)
        if isinstance(part, msgspec.inspect.CustomType) and not is_pydantic(part.cls):
            raise TypeError(f"JSON has no form for {part.cls!r}")
        if isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field):
            pending += [getattr(part, name) for name in part.__struct_fields__]
        elif isinstance(part, tuple):
            pending += part
    return _Inside(decimals, is_open)


def _reason(value: Any, error: Exception) -> str:
    """Why a value cannot be encoded by its type."""
    if isinstance(error, msgspec.ValidationError):
        return describe_misfit(error)
    for name, part in (_fields(value) or {}).items():
        try:
            _write(part)
        except Exception as cause:  # found where: the value of this field cannot be written
            return f"a {type(part).__name__} at $.{name} cannot be written as JSON: {_safe(cause)}"
    return f"a {type(value).__name__} cannot be written as JSON: {_safe(error)}"


def _safe(error: Exception) -> str:
    """Of an error only what cannot quote a value."""
    if isinstance(error, UnicodeError):
        return "it contains a lone surrogate, which is not valid Unicode"
    return str(error) if isinstance(error, TypeError | RecursionError) else type(error).__name__


def _altered(given: Any, decoded: Any, path: str) -> str | None:
    """Where a value differs from what its JSON decodes to; None where only the classes of sequences
    or of numbers differ, or where a class does not compare its instances."""
    if type(given) is not type(decoded) and not _alike(given, decoded):
        return f"Expected {type(decoded).__name__}, got {type(given).__name__} at {path}"
    if isinstance(given, list | tuple) and len(given) == len(decoded):
        steps = ((f"{path}[{index}]", item) for index, item in enumerate(given))
        for (step, item), other in zip(steps, decoded, strict=True):
            if (found := _altered(item, other, step)) is not None:
                return found
        return None
    parts, others = _fields(given), _fields(decoded)
    if parts is None or others is None:
        return None if _same(given, decoded) else f"a {type(given).__name__} that JSON alters at {path}"
    for name, part in parts.items():
        if name not in others:
            return f"unknown field at {path}.{name}"
        if (found := _altered(part, others[name], f"{path}.{name}")) is not None:
            return found
    return None


def _same(given: Any, decoded: Any) -> bool:
    if isinstance(given, datetime) and given.tzinfo is not None and decoded.tzinfo is not None:
        # Of two zones, Python calls times different that an hour of summer time makes ambiguous.
        return bool(given.astimezone(UTC) == decoded.astimezone(UTC))
    return _equal(given, decoded)


def _equal(given: Any, decoded: Any) -> bool:
    try:
        return bool(given == decoded)
    except Exception:  # a signaling NaN, and classes whose comparison is the user's own code
        return False


_ALIKE = ((list, tuple), (set, frozenset), (int, float))


def _alike(given: Any, decoded: Any) -> bool:
    """Whether one may stand for the other: their JSON is the same, and so is what it means."""
    if any(isinstance(given, kinds) and isinstance(decoded, kinds) for kinds in _ALIKE):
        return True
    # A member of an enumeration of texts or numbers is one.
    return isinstance(given, type(decoded)) and isinstance(given, str | int) and given == decoded


def _fields(value: Any) -> Mapping[str, Any] | None:
    """The parts of a value that has names for them."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return _model_fields(value) if is_pydantic(type(value)) else None


_BY_IDENTITY: Any = object.__eq__


def _model_fields(model: Any) -> dict[str, Any]:
    """The fields of a pydantic model, with its extra ones and its private attributes. Without cached
    properties, and without private objects that compare by identity: a decoded lock is a new one."""
    names = type(model).model_fields
    private = getattr(model, "__pydantic_private__", None) or {}
    return {
        **{name: part for name, part in vars(model).items() if name in names},
        **(getattr(model, "__pydantic_extra__", None) or {}),
        **{
            name: part
            for name, part in private.items()
            if part is None or type(part).__eq__ is not _BY_IDENTITY
        },
    }
