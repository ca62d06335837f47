"""The counters of a worker."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

CLAIM_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds of the buckets that claims are counted in; the last bucket has none."""


KILL_CAUSES = ("timeout", "memory", "cancel", "stop", "lease")
"""Why children of a worker are killed."""


class WorkerMetrics(msgspec.Struct):
    """Counters since the start of the worker; times in seconds."""

    batches_processed: int = 0
    """Claims that found something."""
    empty_receives: int = 0
    """Claims that found nothing."""
    commands_received: int = 0
    commands_settled: int = 0
    claim_failures: int = 0
    settle_failures: int = 0
    leases_lost: int = 0
    """Outcomes refused, because their lease was gone."""
    rescued: int = 0
    """Commands taken back from workers that died."""
    wakeups: dict[str, int] = {}
    """Wake-ups by source: notify, watch, chain, timer, fallback, lost, reconnect, …"""
    recoveries: dict[str, int] = {}
    """Restarts by the watchdog, by what was wrong: threads, connections, silence."""
    children: int = 0
    """Processes for handlers with isolation="process" that live now."""
    child_restarts: int = 0
    """Children that died or were killed, and were replaced."""
    child_kills: dict[str, int] = {}
    """Children that the worker or the kernel killed, by one of KILL_CAUSES."""
    claim_counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(CLAIM_BOUNDS) + 1))
    """Claims by how long they took, in the buckets of CLAIM_BOUNDS."""
    fetch_seconds: float = 0.0
    process_seconds: float = 0.0
    processed: int = 0

    @property
    def average_fetch_seconds(self) -> float:
        claims = self.batches_processed + self.empty_receives
        return self.fetch_seconds / claims if claims else 0.0

    @property
    def average_process_seconds(self) -> float:
        return self.process_seconds / self.processed if self.processed else 0.0

    @property
    def fetch_effectiveness(self) -> float:
        """Commands per claim: how well batching works."""
        claims = self.batches_processed + self.empty_receives
        return self.commands_received / claims if claims else 0.0

    def woken(self, source: str) -> None:
        """Count a wake-up by what caused it."""
        self.wakeups[source] = self.wakeups.get(source, 0) + 1

    def claimed(self, seconds: float, found: int, rescued: int) -> None:
        """A claim was answered: so many commands were found, so many taken back from dead workers."""
        self.fetch_seconds += seconds
        self.claim_counts[bisect_left(CLAIM_BOUNDS, seconds)] += 1
        self.rescued += rescued
        self.commands_received += found
        if found:
            self.batches_processed += 1
        else:
            self.empty_receives += 1

    def ran(self, count: int, seconds: float) -> None:
        """So many handlers have ended, which took so long together."""
        self.processed += count
        self.process_seconds += seconds

    def child_killed(self, cause: str) -> None:
        """Count a child process that was killed."""
        self.child_kills[cause] = self.child_kills.get(cause, 0) + 1

    def recovered(self, kind: str) -> None:
        """Count commands of a dead worker that went back to the queue."""
        self.recoveries[kind] = self.recoveries.get(kind, 0) + 1
