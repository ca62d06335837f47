"""An operator of the laboratory: pauses, resumes, cancels, retries parked commands, alone and in bulk,
while everything else goes on. Each action is written down before it is tried and after its answer."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from typing import Any

from commandbus import CommandBusError, CommandStatus, InvalidOperationError, StoreUnavailable
from commandbus.records import Cancellation
from commandbus.sync import SyncCommandBus, SyncTroubleshootingQueue
from tests.chaos.kinds import DOMAINS, LASTING, OPERATED
from tests.os_processes.child import Config, obey, say
from tests.os_processes.journal import Journal

PAUSE_SECONDS = 0.5
"""How long a domain is paused at most."""
NAME = "ann"


class Operator:
    """Acts until told to stop; then nothing is paused any more."""

    def __init__(self, bus: SyncCommandBus, config: Config, journal: Journal) -> None:
        self._bus, self._journal = bus, journal
        self._queue = SyncTroubleshootingQueue(bus)
        self._chance = random.Random(f"{config['seed']}-operator-{os.getpid()}")
        self._hurry: float = config["hurry"]
        self._stop = threading.Event()

    def run(self) -> None:
        obey({"stop": self._stop.set})
        say("ready")
        # An earlier life may have ended between a pause and its end.
        for domain in DOMAINS:
            self._resume(domain)
        actions: tuple[Callable[[str], None], ...] = (
            self._pause,
            self._cancel,
            self._retry,
            self._bulk,
        )
        while not self._stop.wait(self._chance.random() * self._hurry):
            try:
                self._chance.choice(actions)(self._chance.choice(DOMAINS))
            except StoreUnavailable:
                self._stop.wait(0.1)
        say("sent")

    def _pause(self, domain: str) -> None:
        # For the checker this is a fault: what is paused may be late.
        self._journal.write("fault", fault="pause", victim=None)
        try:
            self._bus.acting(NAME).pause(domain, "a look")
            self._journal.write("paused", domain=domain)
            self._stop.wait(self._chance.random() * PAUSE_SECONDS)
        finally:
            self._resume(domain)

    def _resume(self, domain: str) -> None:
        """Until it is known to be done."""
        while True:
            self._journal.write("resume_invoked", domain=domain)
            try:
                self._bus.acting(NAME).resume(domain)
            except StoreUnavailable:
                threading.Event().wait(0.05)
            else:
                return

    def _some(self, domain: str, status: CommandStatus, *more: str) -> Any:
        page = self._bus.query_commands(domain=domain, status=status, limit=50)
        known = [record for record in page if record.command_type in (*OPERATED, *more)]
        return self._chance.choice(known) if known else None

    def _cancel(self, domain: str) -> None:
        status = self._chance.choice((CommandStatus.PENDING, CommandStatus.IN_PROGRESS))
        if (record := self._some(domain, status, LASTING)) is None:
            return
        command_id = str(record.command_id)
        self._journal.write("cancel_invoked", id=command_id)
        try:
            answer = self._bus.acting(NAME).cancel(command_id, domain=domain, reason="by an operator")
        except InvalidOperationError:
            return  # it has ended meanwhile
        except CommandBusError as error:
            self._journal.write("cancel_unknown", id=command_id, error=str(error))
            raise
        if answer in (Cancellation.CANCELED, Cancellation.CANCELED_PARKED):
            self._journal.write("canceled", id=command_id)
        else:
            self._journal.write("stop_requested", id=command_id)

    def _retry(self, domain: str) -> None:
        record = self._some(domain, CommandStatus.IN_TROUBLESHOOTING_QUEUE)
        if record is not None:
            self._journal.write("retry_invoked", id=str(record.command_id))
            try:
                self._queue.acting(NAME).operator_retry(record.command_id, domain=domain)
            except InvalidOperationError:
                return  # another life of ours did it

    def _bulk(self, domain: str) -> None:
        self._queue.acting(NAME).bulk("retry", domain=domain, command_type="permanent", limit=3)
