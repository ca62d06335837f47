"""Pages of lists that are read whole, so that none is longer than some ten screens of a phone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request

T = TypeVar("T")


class Part(msgspec.Struct, Generic[T], frozen=True):
    """The rows of one page, which is the `number`th of so many."""

    rows: Sequence[T]
    number: int
    count: int


def part_of(request: Request, rows: Sequence[T], size: int) -> Part[T]:
    """The page that a request asks for with `page=`, or the last one where there are fewer."""
    asked = request.query_params.get("page") or "1"
    count = max(1, -(-len(rows) // size))
    number = min(msgspec.convert(asked, Annotated[int, Meta(ge=1)], strict=False), count)
    return Part(rows[(number - 1) * size : number * size], number, count)
