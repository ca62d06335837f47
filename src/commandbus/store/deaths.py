"""A worker is known to be dead: what becomes of the commands that it held.

A dead worker leaves leases behind. Where a flight recorder says which of their commands had begun, the
store need not wait for the leases to end, nor count a crash for each command:

- running: it may be what killed the worker; a crash is counted, with the cause of the death;
- finished, but not recorded: it goes back and counts among its releases, which are limited;
- not begun: it goes back as if it had never been delivered.

The crash that would park a command needs evidence that this command ended its process: the process
ended from inside (a fault, an exit code, memory that ran out, SIGKILL sent to itself), or how it ended
is not known and nothing else ran. Without evidence the command goes back and counts among its releases,
three times at most: a kill from outside, or a neighbour, may be the reason.

The leases are the fence: they end in the same transaction, so a worker that lives after all is refused.

A lease may end before the recorder was acted on, as short ones do; that of a worker that lives ends
when its process is stopped, or cannot renew it. A rescue of expired leases therefore asks a witness
about the worker, and counts by the same rules if the recorder can be read. Where the worker asked for
the renewal in time and the store did not answer, no command is the reason, and none counts a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

import msgspec

from commandbus.domain.outcome import (
    CRASHES_MAX,
    NOT_RECORDED,
    Crashed,
    Outcome,
    Released,
    decide_stopped,
)
from commandbus.store.records import Settlement
from commandbus.store.settling import Member, Writes, plan, plan_lost

NOT_BEGUN = "its worker was lost before it began"
NOT_BLAMED = "its worker was lost, and nothing shows that it was the cause"
NOT_RENEWED = "The worker stopped renewing its lease"
SPARED_MAX = 3
"""A command that was given back this often is parked with its third crash, whatever is known."""
KEPT_SECONDS = 60.0
"""Leases of a dead worker that have ended, and were not taken back, are valid again for so long: until
the end of the transaction that empties them."""

Run = tuple[int, int]
"""A lease and the sequence of a command under it."""
HeldCommand = tuple[int, Member, UUID | None]
"""A lease, a command under it, and its batch."""


class WorkerDeath(msgspec.Struct, frozen=True):
    """What is known of a worker that is dead, or that let its leases end."""

    worker: str
    cause: str
    """A sentence without its end, such as: Its worker process 4711 was killed by SIGKILL."""
    running: frozenset[Run] = frozenset()
    finished: frozenset[Run] = frozenset()
    complete: bool = True
    """Whether all that had begun is named here; if not, everything counts a crash."""
    excused: bool = False
    """Its leases ended for another reason than what it runs, which counts no crash: a signal stopped
    the process, or the store was away."""
    from_inside: bool | None = None
    """Whether what it ran ended the process; None if it is not known how the process ended."""

    @property
    def blames(self) -> bool:
        """Whether this is evidence against each command that ran."""
        return len(self.running) == 1 if self.from_inside is None else self.from_inside


Witness = Callable[[str], WorkerDeath | None]
"""What is known of a worker that is lost, by its name; None if nothing is known."""


def unknown_death(worker: str) -> WorkerDeath | None:
    """The witness of a process that reads no recorders."""
    return None


class DeathReport(msgspec.Struct, frozen=True):
    """How many commands were taken back from a dead worker."""

    crashed: int = 0
    released: int = 0


def settlements_after(death: WorkerDeath, held: Iterable[HeldCommand]) -> list[Settlement]:
    """What a death amounts to for each command that the worker held."""
    return [
        Settlement(
            member.seq,
            lease_id,
            member.attempt,
            _outcome(death, (lease_id, member.seq), member),
            batch_id=batch_id,
        )
        for lease_id, member, batch_id in held
    ]


def _outcome(death: WorkerDeath, run: Run, member: Member) -> Outcome:
    begun = not death.complete or run in death.running or run in death.finished
    if begun and death.excused:
        return decide_stopped(member.releases, NOT_RECORDED)
    if not death.complete:
        return Crashed(death.cause)
    if run in death.running:
        parks = member.crashes + 1 >= CRASHES_MAX
        if parks and not death.blames and member.releases < SPARED_MAX:
            return Released(f"{NOT_BLAMED}: {death.cause}", counted=True)
        return Crashed(death.cause)
    return decide_stopped(member.releases, NOT_RECORDED) if begun else Released(NOT_BEGUN)


def plan_rescued(
    writes: Writes,
    member: Member,
    lease_id: int,
    worker: str,
    claimed_at: int,
    death: WorkerDeath | None,
) -> None:
    """What the end of a lease writes for a command that was still under it. Where nothing is known of
    its worker, it counts a crash."""
    if death is None:
        plan_lost(writes, member, lease_id, worker, claimed_at)
        return
    outcome = _outcome(death, (lease_id, member.seq), member)
    settlement = Settlement(member.seq, lease_id, member.attempt, outcome)
    plan(writes, settlement, member, worker, claimed_at)


def report_on(settlements: Iterable[Settlement], lost: Iterable[int]) -> DeathReport:
    """Of settlements that were written, but for those that were refused."""
    refused = set(lost)
    written = [one for one in settlements if one.seq not in refused]
    crashed = sum(isinstance(one.outcome, Crashed) for one in written)
    return DeathReport(crashed, len(written) - crashed)
