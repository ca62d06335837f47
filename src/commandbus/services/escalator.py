"""Reports commands that stayed parked for too long, where escalation is configured."""

from __future__ import annotations

import logging

from commandbus.domain.moment import as_datetime
from commandbus.operations.parked_notes import escalate
from commandbus.operations.scope import Scope
from commandbus.store.op import Op
from commandbus.store.records import Overdue

logger = logging.getLogger("commandbus.escalation")

SHORTEST, LONGEST = 1.0, 60.0
"""Between two looks, in the whole fleet."""


class Escalator:
    name = "escalation"
    topic = "commandbus.escalation"

    def __init__(self, seconds: float, send_to: str | None) -> None:
        self._seconds = seconds
        self._send_to = send_to
        self._escalated: list[Overdue] = []

    def work(self, scope: Scope) -> Op[float]:
        pause = max(SHORTEST, min(LONGEST, self._seconds / 10))
        self._escalated = []
        self._escalated, wait = yield from escalate(scope, self._seconds, self._send_to, pause)
        return wait

    def confirm(self) -> None:
        for command in self._escalated:
            logger.warning(
                "command %s (%s/%s) is parked since %s and still parked",
                command.command_id,
                command.domain,
                command.command_type,
                as_datetime(command.parked_at).isoformat(timespec="seconds"),
            )
