"""A quick look at flat payloads: whether every field has exactly the type that it is annotated with.

Such a payload decodes to an equal one, so it need not be decoded again to know that. Compiled once for
each contract, as dataclasses compile their methods: a send would notice a call for each field.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from math import isfinite
from typing import Any
from uuid import UUID

import msgspec
from msgspec import inspect

_SIMPLE: dict[type[inspect.Type], str] = {
    inspect.StrType: "type(IT) is str",
    inspect.IntType: "(type(IT) is int and -0x8000000000000000 <= IT <= 0xFFFFFFFFFFFFFFFF)",
    inspect.DecimalType: "(type(IT) is Decimal and IT.is_finite())",
    inspect.FloatType: "(type(IT) is float and isfinite(IT))",
    inspect.UUIDType: "type(IT) is UUID",
    inspect.BoolType: "type(IT) is bool",
    inspect.NoneType: "IT is None",
}
_NAMES = {"Decimal": Decimal, "UUID": UUID, "isfinite": isfinite}


def exact_check(struct: type[msgspec.Struct]) -> Callable[[Any], bool] | None:
    """Whether all fields of an instance have exactly their types, as a function. None where fields are
    of other types than text, numbers, UUIDs, booleans and null, or have constraints, such as a longest
    length: only a decoder checks these."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    conditions: list[str] = []
    for field in info.fields:
        parts = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
        if not all(type(part) in _SIMPLE and part == type(part)() for part in parts):
            return None
        condition = " or ".join(_SIMPLE[type(part)] for part in parts)
        # Read once, where it is used first.
        condition = condition.replace("IT", f"(IT := value.{field.name})", 1)
        conditions.append(f"({condition})")
    # The names are those of parameters, so they are identifiers.
    check: Callable[[Any], bool] = eval(  # noqa: S307
        f"lambda value: {' and '.join(conditions) or 'True'}", dict(_NAMES)
    )
    return check
