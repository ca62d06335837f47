"""The delivery of a task that runs, as `self.request`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """`self.request`: the delivery of a task that runs. Arguments are named, so `args` is empty."""

    id: str | None = None
    task: str | None = None
    retries: int = 0
    kwargs: dict[str, Any] = field(default_factory=dict)
    args: tuple[Any, ...] = ()
    root_id: str | None = None
    parent_id: str | None = None
    hostname: str | None = None
    delivery_info: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, Any] = field(default_factory=dict)
    is_eager: bool = False
    called_directly: bool = True

    @property
    def correlation_id(self) -> str | None:
        return self.root_id
