"""What a worker counts about itself."""

from __future__ import annotations

import msgspec


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
        self.wakeups[source] = self.wakeups.get(source, 0) + 1
