"""What the laboratory leaves behind, in the form that the checker reads."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.os_processes import journal

Event = dict[str, Any]


FLUSH_SECONDS = 1.0
"""What a server commits asynchronously is on its disk within three times wal_writer_delay."""
DEATHS = {"kill worker", "killed by a command"}
DYING_SECONDS = 1.0
"""A server notices within so many seconds that a client is gone, and undoes its transaction."""
SERVER_CRASHES = {
    "restart server": 0.5,
    "kill server": 0.5,
    "outage": 0.5,
    "fail over": 0.5,
    "disk full": 3.0,
}
"""Faults that crash a server, and within how many seconds."""


@dataclass(frozen=True)
class Violation:
    """A broken promise, and the fewest facts that show it."""

    promise: str
    what: str
    witness: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.promise}: {self.what}", *(f"    {line}" for line in self.witness)])


@dataclass(frozen=True)
class Trace:
    """One entry of an audit trail; `at` in seconds since 1970."""

    kind: str
    at: float
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Final:
    """A command as the store shows it in the end."""

    id: str
    status: str
    attempts: int
    crashes: int
    max_attempts: int
    priority: int
    sequence: int
    reason: str | None
    error: str | None
    trail: tuple[Trace, ...]
    type: str = "note"
    key: str | None = None
    batch: str | None = None
    """The batch that it belongs to, or whose completion it is."""
    domain: str = "d"


@dataclass(frozen=True)
class Batch:
    """A batch as the store shows it in the end."""

    id: str
    total: int
    completed: int
    failed: int
    canceled: int
    parked: int
    complete: bool


@dataclass(frozen=True)
class Store:
    """What is in the store when all is over."""

    finals: tuple[Final, ...]
    batches: tuple[Batch, ...] = ()
    effects: tuple[tuple[str, int], ...] = ()
    """What transfers did: the id of the command and its token, once for each time."""
    held_keys: tuple[str, ...] = ()
    """Unique keys that cannot be used though no command is alive."""
    replies: tuple[str, ...] = ()
    """The commands that were replied to, once for each reply."""
    occurrences: tuple[tuple[str, str], ...] = ()
    """What schedules have sent: the schedule, and the moment that it was for."""
    lies: tuple[str, ...] = ()
    """Where the product's reads tell something else than the tables."""
    receipted: int = 0
    """Outcomes that share a row with others."""


@dataclass
class KeyTry:
    """A send under a unique key, in a transaction of its sender."""

    id: str
    key: str
    began: float
    ended: float | None = None
    fate: str = "key_unknown"
    holder: str | None = None
    """The command that has the key, as the sender was told."""


@dataclass(frozen=True)
class Member:
    """A command inside a claim or a settle of some process."""

    event: str
    began: float
    at: float
    pid: int
    facts: Event

    @property
    def token(self) -> int:
        return int(self.facts["token"])

    def __str__(self) -> str:
        kept = {k: v for k, v in self.facts.items() if k in ("token", "attempt", "outcome", "seq")}
        return f"{self.at:.6f} process {self.pid} {self.event} {kept}"


T = TypeVar("T")


class Lists(dict[str, list[T]]):
    """Lists by command; asking for one that is not there adds nothing."""

    def __missing__(self, key: str) -> list[T]:
        return []

    def add(self, key: str, item: T) -> None:
        self.setdefault(key, []).append(item)


@dataclass(frozen=True)
class Terms:
    """What workers were started with: promises with a number of seconds depend on it."""

    lease: float
    grace: float
    concurrency: int
    load: float = 1.0
    """Seconds that a busy machine may add to a stop."""
    redelivery: float = 1.0
    """P15: seconds after the end of a dead worker's lease until its commands run again."""
    in_sequence: bool = True
    """Whether commands of one priority are claimed in order of sequence: PGMQ has the order of its
    own message numbers, which sends that run at once get in another order."""
    one_writer: bool = False
    """Whether a worker that is frozen within a transaction keeps all others from writing."""
    recorders: bool = True
    """Whether workers have flight recorders; most seeded bugs are shown without."""


class Case:
    """Histories of all processes, by command, and what the store has in the end."""

    def __init__(self, events: Iterable[Event], store: Store, terms: Terms | None = None) -> None:
        self.terms = terms
        self.events = sorted(events, key=lambda event: event["at"])
        self.store = store
        self.finals: Lists[Final] = Lists()
        for final in store.finals:
            self.finals.add(final.id, final)
        self.invoked: dict[str, Event] = {}
        """The first send of each command, with the moment before it."""
        self.groups: list[list[str]] = []
        self.batches: set[str] = set()
        """Those that somebody tried to create."""
        self.tries: dict[str, KeyTry] = {}
        self.answers: Lists[Event] = Lists()
        self.claims: Lists[Member] = Lists()
        self.runs: Lists[Event] = Lists()
        self.settles: Lists[Member] = Lists()
        self.claim_calls: list[Event] = []
        self.cut_claims: list[tuple[float, float]] = []
        """From when to when claims without an answer may have locked commands."""
        self._claiming: dict[int, float] = {}
        """Processes that have begun a claim, of which no answer is written down."""
        self.faults: list[Event] = []
        self.leaks: list[Event] = []
        """What a handler found of another one's session."""
        self.finished: Lists[Event] = Lists()
        self.steps: Lists[Event] = Lists()
        self.cancels_invoked: set[str] = set()
        self.canceled: dict[str, float] = {}
        """When an operator learned that a command is canceled."""
        self.asked_to_stop: dict[str, float] = {}
        """When an operator learned that a running command was asked to end."""
        self.pauses: list[tuple[str, float, float]] = []
        """A domain, since when it was surely paused, and until when."""
        self._paused: dict[str, float] = {}
        for event in self.events:
            self._sort_in(event)

    def _sort_in(self, event: Event) -> None:
        kind = event["event"]
        if kind == "send_invoked":
            self.groups.append([command["id"] for command in event["commands"]])
            if "batch" in event:
                self.batches.add(event["batch"])
            for command in event["commands"]:
                self.invoked.setdefault(command["id"], command | {"at": event["at"]})
        elif kind.startswith("send_"):
            for command_id in event["ids"]:
                self.answers.add(command_id, event)
        elif kind == "key_invoked":
            command = event["command"] | {"at": event["at"]}
            self.invoked[command["id"]] = command
            self.tries[command["id"]] = KeyTry(command["id"], command["key"], event["at"])
        elif kind.startswith("key_"):
            tried = self.tries[event["id"]]
            tried.ended, tried.fate, tried.holder = event["at"], kind, event.get("holder")
        elif kind == "fault":
            self.faults.append(event)
            if event["fault"] in DEATHS and (since := self._claiming.get(event["victim"])):
                self.cut_claims.append((since, event["at"] + DYING_SECONDS))
        elif kind == "finished":
            self.finished.add(event["id"], event)
        elif kind in ("step", "step_recorded"):
            self.steps.add(event["id"], event)
        elif kind == "cancel_invoked":
            self.cancels_invoked.add(event["id"])
        elif kind == "canceled":
            self.canceled.setdefault(event["id"], event["at"])
        elif kind == "stop_requested":
            self.asked_to_stop.setdefault(event["id"], event["at"])
        elif kind == "paused":
            self._paused[event["domain"]] = event["at"]
        elif kind == "resume_invoked":
            if (since := self._paused.pop(event["domain"], None)) is not None:
                self.pauses.append((event["domain"], since, event["at"]))
        elif kind == "leak":
            self.leaks.append(event)
        elif kind == "handled":
            self.runs.add(event["id"], event)
        elif kind == "claiming":
            self._claiming[event["pid"]] = event["at"]
        elif kind == "claim_unknown":
            self._claiming.pop(event["pid"], None)
            self.cut_claims.append((event["began"], event["at"] + DYING_SECONDS))
        elif kind == "claimed":
            self._claiming.pop(event["pid"], None)
            self.claim_calls.append(event)
            for facts in event["members"]:
                self.claims.add(facts["id"], _member(event, facts))
        elif kind in ("settled", "refused", "settle_unknown"):
            for facts in event["members"]:
                self.settles.add(facts["id"], _member(event, facts))

    def final(self, command_id: str) -> Final | None:
        found = self.finals.get(command_id)
        return found[0] if found else None

    def forgotten(self, claim: Member) -> bool:
        """Whether the server may have forgotten this claim: claims commit asynchronously, and one that
        a crash of the server takes back gives its work out again, uncounted."""
        return any(
            fault["at"] - FLUSH_SECONDS < claim.at and claim.began < fault["at"] + lasts
            for fault in self.faults
            if (lasts := SERVER_CRASHES.get(fault["fault"])) is not None
        )

    def retried(self, command_id: str) -> int:
        """How often an operator has sent a command back to work."""
        final = self.final(command_id)
        return sum(t.kind == "OPERATOR_RETRY" for t in final.trail) if final else 0

    def overlapped_by_run(self, command_id: str, moment: float) -> bool:
        """Whether a handler of another delivery was running at a moment, or a server crashed then."""
        crashed = any(
            fault["at"] - FLUSH_SECONDS < moment < fault["at"] + FLUSH_SECONDS + 1.0
            for fault in self.faults
            if fault["fault"] in SERVER_CRASHES
        )
        tokens = {run["token"] for run in self.runs[command_id] if run["at"] <= moment}
        return crashed or len(tokens) > 1

    def accepted(self, command_id: str) -> list[Member]:
        return [member for member in self.settles[command_id] if member.event == "settled"]

    def story(self, command_id: str, *kinds: str) -> tuple[str, ...]:
        """What happened to one command, in order: the witness of most violations."""
        lines = [
            f"{event['at']:.6f} process {event['pid']} {event['event']}"
            for event in self.answers[command_id]
        ]
        lines += [str(member) for member in self.claims[command_id] + self.settles[command_id]]
        lines += [
            f"{event['at']:.6f} process {event['pid']} handled token {event['token']}"
            for event in self.runs[command_id]
        ]
        wanted = sorted(line for line in lines if not kinds or any(kind in line for kind in kinds))
        final = self.final(command_id)
        state = (
            f"{final.status} attempts {final.attempts} crashes {final.crashes}" if final else "absent"
        )
        return (f"command {command_id}: {state}", *wanted[:12])


def _member(event: Event, facts: Event) -> Member:
    return Member(event["event"], event.get("began", event["at"]), event["at"], event["pid"], facts)


def load(folder: Path, store: Store, terms: Terms | None = None) -> Case:
    """The case from the journals in a folder."""
    paths = sorted(folder.glob("history-*.jsonl"))
    return Case((event for path in paths for event in journal.read(path)), store, terms)
