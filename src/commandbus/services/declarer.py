"""Brings the schedules and limits of a worker's registry into the store, when the worker starts."""

from __future__ import annotations

import logging
import shlex

from commandbus.domain.limits import Limit
from commandbus.domain.schedule import Schedule
from commandbus.errors import RoleMayNotError
from commandbus.operations.declaring import Declared, declarations, declare_one, find_gone
from commandbus.operations.scope import Scope
from commandbus.store.op import Op, autocommit

logger = logging.getLogger("commandbus.declarations")

AGAIN = 86_400.0
REFUSED_AGAIN = 3_600.0
"""Rights may be granted while a worker runs; each attempt is an error in the server's log."""


class Declarer:
    """Each declaration has a run of its own, so that one that the database role may not bring in holds
    no other back."""

    name = "declarer"
    topic = "commandbus.declarations"

    def __init__(self, registry: Declared) -> None:
        self._registry = registry
        self._left: list[tuple[str, Schedule | Limit]] | None = None
        """The declarations that have not had their run; None before the first run."""
        self._refused: list[tuple[str, Schedule | Limit]] = []
        """Those that the role may not bring in."""
        self._reported: set[str] = set()
        self._done = False

    @autocommit
    def work(self, scope: Scope) -> Op[float]:
        if self._done:
            return AGAIN
        if self._left is None:
            self._left = list(declarations(self._registry).items())
        if not self._left:
            for key in (yield from find_gone(scope, self._registry)):
                if self._is_new(key):
                    logger.warning(
                        "%s is not declared any more, and stays until an operator removes it", key
                    )
            return REFUSED_AGAIN if self._refused else AGAIN
        key, declared = self._left[0]
        try:
            fate = yield from declare_one(scope, key, declared)
        except RoleMayNotError as error:
            self._refused.append((key, declared))
            if self._is_new(key):
                logger.warning("%s is declared and not in force: %s%s", key, error, _cure(declared))
        else:
            if fate == "kept":
                logger.info("%s was changed by an operator, and stays as it is", key)
        return 0.0

    def confirm(self) -> None:
        if self._left:
            del self._left[0]
        else:
            self._left, self._refused = self._refused, []
            self._done = not self._left

    def _is_new(self, key: str) -> bool:
        """Whether nothing was logged about a declaration before."""
        if key in self._reported:
            return False
        self._reported.add(key)
        return True


def _cure(declared: Schedule | Limit) -> str:
    if isinstance(declared, Schedule):
        return ""
    command = ["commandbus", "limit", "set", declared.domain]
    if declared.command_type is not None:
        command += ["--type", declared.command_type]
    if declared.concurrency is not None:
        command += ["--concurrency", str(declared.concurrency)]
    if declared.rate is not None:
        command += ["--rate", str(declared.rate), "--burst", str(declared.burst)]
    return (
        " Limits are set with a login of the role admin, by bus.declare(registry) in a deployment or "
        f"by `{shlex.join(command)}`."
    )
