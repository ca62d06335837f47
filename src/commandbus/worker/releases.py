"""Commands that are given back without having begun, and why."""

from __future__ import annotations

from commandbus.domain.outcome import Released
from commandbus.store.records import Claimed, Settlement

STOPPING = "the worker is stopping"
STALLED = "held up behind a slow command"
UNCHECKED = "it is not known whether it was asked to stop"
OVERTAKEN = "another of its group comes first again"


def release(claimed: Claimed, reason: str) -> Settlement:
    return Settlement(claimed.seq, claimed.lease_id, claimed.attempt, Released(reason))
