"""Types of payloads for the tests of typed commands."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, Generic, TypedDict, TypeVar

import msgspec
import pydantic


@dataclass
class Refund:
    order: int
    amount: Decimal = Decimal(1)


@dataclass(eq=False)
class Opaque:
    order: int


class Ship(msgspec.Struct):
    order: int


Item = TypeVar("Item")


@dataclass
class Box(Generic[Item]):
    order: Item


class Model(pydantic.BaseModel):
    order: int
    at: datetime | None = None
    count: int = pydantic.Field(default=1, alias="howMany")


class Extended(Model):
    gift: str = "none"


class Stamped(pydantic.BaseModel):
    at: datetime

    @pydantic.field_serializer("at")
    def day(self, at: datetime) -> str:
        return at.date().isoformat()


class Shortened(pydantic.BaseModel):
    items: list[int]

    @pydantic.field_serializer("items")
    def first(self, items: list[int]) -> list[int]:
        return items[:1]


class Login(pydantic.BaseModel, extra="allow"):
    password: pydantic.SecretStr | None = None
    hidden: int = pydantic.Field(default=0, exclude=True)
    model: Model | None = None
    pair: tuple[int, ...] = ()
    anything: Any = None
    _seen: int = pydantic.PrivateAttr(default=0)
    _lock: object = pydantic.PrivateAttr(default_factory=object)

    @cached_property
    def total(self) -> int:
        return self.hidden

    def after(self, seen: int) -> Login:
        self._seen = seen
        return self


class Keys(TypedDict):
    order: int
