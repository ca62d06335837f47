"""The demo itself: senders, workers, a crash, and the check that nothing was lost."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from commandbus import CommandBus, CommandRecord, CommandStatus, SendRequest, Worker
from commandbus.interfaces.cli.demo.workload import build_registry, expected_ends, pace_of
from commandbus.store.records import QueueStats
from commandbus.sync import SyncCommandBus, SyncWorker

LOOK_SECONDS = 0.1
WAVES = 8
"""The commands are sent in so many waves, WAVE_SECONDS apart: real senders come and go."""
WAVE_SECONDS = 0.5
CRASH_SHARE = 0.35
"""The extra process is killed when this share of the commands has ended."""
ASYNC_CONCURRENCY, THREAD_CONCURRENCY = 8, 4


@dataclass(slots=True)
class Figures:
    """The demo at one moment."""

    seconds: float = 0.0
    sent: int = 0
    ended: dict[str, int] = field(default_factory=dict[str, int])
    running: int = 0
    completed: int = 0
    failed: int = 0
    parked: int = 0
    retries: int = 0
    rate: float = 0.0
    news: str = ""
    """The last remarkable thing that happened."""

    @property
    def total_ended(self) -> int:
        return self.completed + self.failed + self.parked


@dataclass(slots=True)
class Report:
    """The results of a demo."""

    seconds: float
    records: list[CommandRecord]
    problems: list[str]
    crashed: bool


class View(Protocol):
    """Shows figures as they come."""

    def update(self, figures: Figures) -> None: ...


class Scene:
    """One run of the demo."""

    def __init__(
        self, url: str, domains: list[str], planned: list[SendRequest], *, crash: bool
    ) -> None:
        self.url = url
        self.domains = domains
        self.planned = planned
        self.totals = Counter(request.domain for request in planned)
        self._crash = crash
        self._prefix = domains[0].removesuffix("payments")
        self._ids: set[UUID] = {UUID(str(request.command_id)) for request in planned}
        self._before: dict[str, QueueStats] = {}
        self._retries = 0
        self._retries_elsewhere = 0
        self._counting = threading.Lock()
        self._figures = Figures(ended=dict.fromkeys(domains, 0))
        self._crashed = False
        self._ready = asyncio.Event()

    async def play(self, view: View, timeout: float) -> Report:
        """Send everything, let it be carried out, and look whether it all arrived."""
        async with CommandBus(self.url, migrate=True) as bus:
            for domain in self.domains:
                self._before[domain] = await bus.stats(domain)
            async with self._workers(bus):
                await self._started()
                began = time.monotonic()
                sending = asyncio.create_task(self._send(bus))
                try:
                    await self._watch(bus, view, began, timeout)
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
                seconds = time.monotonic() - began
            records = await self._records(bus)
        return Report(seconds, records, self._problems(records), self._crashed)

    async def _send(self, bus: CommandBus) -> None:
        size = -(-len(self.planned) // WAVES)
        for first in range(0, len(self.planned), size):
            wave = self.planned[first : first + size]
            await bus.send_many(wave)
            self._figures.sent += len(wave)
            await asyncio.sleep(WAVE_SECONDS * pace_of(len(self.planned)))

    async def _watch(self, bus: CommandBus, view: View, began: float, timeout: float) -> None:
        """Look at the figures again and again, until every command has ended or is parked."""
        looks: list[tuple[float, int]] = []
        figures = self._figures
        while True:
            await self._look(bus)
            now = time.monotonic()
            figures.seconds = now - began
            looks = [*looks[-9:], (now, figures.total_ended)]
            span = looks[-1][0] - looks[0][0]
            figures.rate = (looks[-1][1] - looks[0][1]) / span if span else 0.0
            view.update(figures)
            if figures.total_ended >= len(self.planned) or figures.seconds > timeout:
                return
            if figures.total_ended >= CRASH_SHARE * len(self.planned):
                self._kill()
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, bus: CommandBus) -> None:
        figures = self._figures
        figures.completed = figures.failed = figures.parked = figures.running = 0
        for domain, before in self._before.items():
            stats = await bus.stats(domain)
            completed = stats.completed - before.completed
            failed = stats.failed - before.failed
            parked = stats.parked - before.parked
            figures.ended[domain] = completed + failed + parked
            figures.completed += completed
            figures.failed += failed
            figures.parked += parked
            figures.running += stats.running
        figures.retries = self._retries + self._retries_elsewhere

    # Workers: two on this event loop, one on threads, one in a process of its own.

    @contextlib.asynccontextmanager
    async def _workers(self, bus: CommandBus) -> AsyncIterator[None]:
        registry = build_registry(self._told, self._prefix)
        lone = Worker(bus, self.domains[0], registry, concurrency=ASYNC_CONCURRENCY, name="asyncio-1")
        both = Worker(bus, self.domains, registry, concurrency=ASYNC_CONCURRENCY, name="asyncio-2")
        with SyncCommandBus(self.url) as sync_bus:
            threads = SyncWorker(
                sync_bus, self.domains, registry, concurrency=THREAD_CONCURRENCY, name="threads"
            )
            process = await self._start_process()
            running = [asyncio.create_task(worker.run()) for worker in (lone, both)]
            running.append(asyncio.create_task(asyncio.to_thread(threads.run)))
            counting = asyncio.create_task(self._count_elsewhere(process))
            try:
                yield
            finally:
                await asyncio.gather(lone.stop(), both.stop(), asyncio.to_thread(threads.stop))
                await asyncio.gather(*running)
                await _end(process)
                await counting

    def _told(self) -> None:
        with self._counting:
            self._retries += 1

    async def _start_process(self) -> asyncio.subprocess.Process:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "commandbus.interfaces.cli.demo.process",
            self.url,
            self._prefix,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        return self._process

    async def _count_elsewhere(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for row in process.stdout:
            self._ready.set()
            if row.strip().isdigit():
                self._retries_elsewhere = int(row)
        self._ready.set()

    async def _started(self) -> None:
        """Until the extra process is at work, so that it gets its share before it is killed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await self._ready.wait()

    def _kill(self) -> None:
        """The accident on purpose: no warning, no chance to tidy up."""
        if self._crash and not self._crashed and self._process.returncode is None:
            self._process.kill()
            self._crashed = True
            self._figures.news = "a worker process was killed; its commands come back with its leases"

    async def _records(self, bus: CommandBus) -> list[CommandRecord]:
        """What the store says about each command that was sent."""
        found: list[CommandRecord] = []
        for domain in self.domains:
            after: str | None = None
            while True:
                page = await bus.query_commands(domain=domain, after=after, limit=1000)
                found += [record for record in page if record.command_id in self._ids]
                after = page.next
                if after is None:
                    break
        return found

    def _problems(self, records: list[CommandRecord]) -> list[str]:
        """Whatever is not as it must be: each command once, each ended as planned."""
        problems: list[str] = []
        missing = len(self._ids) - len({record.command_id for record in records})
        if missing:
            problems.append(f"{missing:,} commands are missing from the store")
        if len(records) > len(self._ids):
            problems.append(f"{len(records) - len(self._ids):,} commands appear twice")
        ends = Counter(record.status for record in records)
        unfinished = ends[CommandStatus.PENDING] + ends[CommandStatus.IN_PROGRESS]
        if unfinished:
            problems.append(f"{unfinished:,} commands have no outcome in time; try a longer --timeout")
        else:
            for status, expected in expected_ends(self.planned).items():
                if ends[status] != expected:
                    problems.append(f"{ends[status]:,} commands are {status}, not {expected:,}")
        return problems


async def _end(process: asyncio.subprocess.Process) -> None:
    """The end of its standard input tells the process to stop; a killed one is gone already."""
    if process.returncode is None and process.stdin is not None:
        process.stdin.close()
        try:
            async with asyncio.timeout(5):
                await process.wait()
        except TimeoutError:
            process.kill()
    await process.wait()
