"""`manage.py commandbus_worker`: carry out the tasks of a backend until a signal comes."""

from __future__ import annotations

import signal
import threading
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from commandbus.errors import CommandBusError
from commandbus.integrations.django import api
from commandbus.integrations.django.handling import registry_for
from commandbus.runtimes.threads.worker import SyncWorker


class Command(BaseCommand):  # type: ignore[misc]
    help = "Carry out the tasks and commands of a backend. SIGTERM and SIGINT let running ones finish."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", default="default", help="An alias in TASKS.")
        parser.add_argument(
            "--queue", action="append", help="Only these queues or domains; repeatable."
        )
        parser.add_argument("--concurrency", type=int, default=4, help="Tasks that run at once.")
        parser.add_argument("--recycle-after", type=int, help="End after so many tasks.")

    def handle(self, *args: Any, **options: Any) -> None:
        backend = api.task_backends[options["backend"]]
        queues = options["queue"] or sorted(backend.queues)
        registry = registry_for(options["backend"], queues)
        domains = options["queue"] or sorted({*queues, *registry.domains})
        if not domains:
            raise CommandError("This backend has no QUEUES of its own; name some with --queue.")
        try:
            worker = SyncWorker(
                backend.bus,
                domains,
                registry,
                concurrency=options["concurrency"],
                recycle_after=options["recycle_after"],
            )
            _stop_by_signals(worker)
            worker.run()
        except CommandBusError as error:
            raise CommandError(str(error)) from error


def _stop_by_signals(worker: SyncWorker) -> None:
    """A thread stops it, for a signal's handler runs in the thread that the worker works in."""

    def stop(number: int, frame: object) -> None:
        threading.Thread(target=worker.stop, daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
