"""The interface of a service: periodic work."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from commandbus.operations.scope import Scope
from commandbus.store.op import Op


class Service(Protocol):
    """Something to be done from time to time, by any number of processes at once."""

    @property
    def name(self) -> str: ...

    @property
    def topic(self) -> str:
        """What wakes it before its time, inside the process."""
        ...

    def work(self, scope: Scope) -> Op[float]:
        """Do what is due, in one transaction; returns the seconds until it wants to run again."""
        ...


@runtime_checkable
class Looking(Protocol):
    """A service that knows without the store whether there is anything to do."""

    look_seconds: float

    def look(self) -> bool:
        """False when `work` is not needed for the next `look_seconds`."""
        ...


@runtime_checkable
class Nudged(Protocol):
    """A service that does more when its topic was woken."""

    def nudged(self) -> None:
        """Its topic was woken; called by any thread, before `look` and `work`."""
        ...


@runtime_checkable
class Confirming(Protocol):
    """A service that remembers something, which it must not do before it is committed."""

    def confirm(self) -> None:
        """What `work` did last is committed."""
        ...
