"""A sender of the laboratory: sends, bulk sends, batches, and unique keys in transactions of its own.

Every command has an id of its own, so that a send of unknown outcome can be repeated. What an earlier
life of a sender left without an answer is repeated first.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sqlite3
import threading
from typing import Any
from uuid import UUID

import psycopg

from commandbus import (
    CommandBusError,
    DuplicateCommandError,
    InvalidOperationError,
    SendRequest,
    StoreUnavailable,
)
from commandbus.engines.sqlite import location
from commandbus.sync import SyncCommandBus
from tests.chaos.kinds import ANSWERS, ASKING, BATCH_DONE, DOMAINS, GATED, GROUPED, STEPPED, TYPES
from tests.os_processes.child import Config, obey, say
from tests.os_processes.journal import Journal, read

Group = dict[str, Any]
"""Commands that are sent together, and how."""
FAILURES = {"flaky": (1, 2, 3), "transfer": (0, 0, 0, 1, 3), STEPPED: (0, 1, 2)}
"""How often a command fails before it succeeds, of three attempts."""
MIX = {"one": 60.0, "bulk": 22.0, "batch": 6.0, "key": 12.0}
"""Ways to send, and how often each."""
SIZES = {"one": 1, "bulk": 10, "many": 50, "batch": 6}
LOOK_EVERY = 20
"""How many commands wait is asked before every so many sends."""
GROUPS = 5
KEYS = 24
"""So few that sends of one key often meet."""


class Sender:
    """Sends until told to stop."""

    def __init__(self, bus: SyncCommandBus, config: Config, journal: Journal) -> None:
        self._bus = bus
        self._callers_url: str = config["callers_url"]
        self._journal = journal
        self._chance = random.Random(f"{config['seed']}-{config['number']}-{os.getpid()}")
        self._stop = threading.Event()
        self._pause = config["pause"]
        self._ahead: int = config["ahead"]
        self._priorities: list[int] = config["priorities"]
        self._longest: float = config["longest"]
        self._mix: dict[str, float] = config.get("mix") or MIX
        self._keys: int = config.get("keys") or KEYS
        self._connection: Any = None
        self._types: dict[str, float] = config.get("types") or TYPES
        unknown = set() if config["transactional"] else {"transfer"}
        unknown |= set() if config["has_gates"] else set(GATED)
        self._types = {name: n for name, n in self._types.items() if name not in unknown}
        self._turns = itertools.cycle(self._types) if config.get("in_turn") else None
        self._until_look = LOOK_EVERY
        self._open = unanswered(config["history"])

    def run(self) -> None:
        obey({"stop": self._stop.set})
        say("ready")
        for group in self._open:
            self._send(group)
        while not self._stop.is_set():
            (how,) = self._chance.choices(list(self._mix), list(self._mix.values()))
            if how == "key":
                self._send_key()
                self._stop.wait(self._chance.random() * self._pause)
                continue
            self._wait_for_workers()
            group = self._new_group(how)
            self._send(group)
            if self._chance.random() < 0.05:
                self._send(group)
            self._stop.wait(self._chance.random() * self._pause * len(group["commands"]))
        say("sent")

    def _wait_for_workers(self) -> None:
        """A slow machine gets no more than it can do: whatever is sent has to be carried out."""
        self._until_look -= 1
        if self._until_look > 0:
            return
        self._until_look = LOOK_EVERY
        with contextlib.suppress(StoreUnavailable):
            while sum(self._bus.stats(d).ready for d in DOMAINS) > self._ahead:
                if self._stop.wait(0.2):
                    return

    def _new_group(self, how: str) -> Group:
        domain = self._chance.choice(DOMAINS)
        count = SIZES[how]
        commands = [self._new_command() for _ in range(count)]
        group: Group = {"commands": commands}
        if how == "batch":
            for command in commands:
                command["domain"] = domain
                command.pop("group", None)  # a member of a batch has none
            group |= {"batch": self._new_id(), "domain": domain}
        return group

    def _new_id(self) -> str:
        return str(UUID(int=self._chance.getrandbits(128), version=4))

    def _new_command(self) -> dict[str, Any]:
        chance = self._chance
        (command_type,) = chance.choices(list(self._types), list(self._types.values()))
        if self._turns:
            command_type = next(self._turns)
        lasting = command_type == "slow" or (command_type == "transfer" and chance.random() < 0.1)
        seconds = chance.uniform(1.0, 2.5) if lasting else chance.uniform(0, self._longest)
        command = {
            "id": self._new_id(),
            "domain": chance.choice(DOMAINS),
            "type": command_type,
            "priority": chance.choice(self._priorities),
            "delay": chance.choice((0, 0, 0, 0, chance.uniform(0.05, 1.0))),
            "data": {"seconds": seconds, "failures": chance.choice(FAILURES.get(command_type, (0,)))},
        }
        if command_type == GROUPED:
            command |= {"group": f"group {chance.randrange(GROUPS)}", "priority": 5, "delay": 0}
        elif command_type == ASKING:
            command["reply_to"] = ANSWERS
        return command

    def _send(self, group: Group) -> None:
        """One send, until its fate is known."""
        ids = [command["id"] for command in group["commands"]]
        while True:
            self._journal.write("send_invoked", **group)
            try:
                self._call(group)
            except (DuplicateCommandError, InvalidOperationError):
                self._journal.write("send_duplicate", ids=ids)
            except StoreUnavailable as error:
                self._journal.write("send_unknown", ids=ids, error=str(error))
                if not self._stop.wait(0.05):
                    continue
            except CommandBusError as error:
                self._journal.write("send_failed", ids=ids, error=str(error))
            else:
                self._journal.write("send_ok", ids=ids)
            return

    def _call(self, group: Group) -> None:
        commands = group["commands"]
        if "batch" in group:
            domain, batch_id = group["domain"], group["batch"]
            done = SendRequest(domain, BATCH_DONE, {"batch": batch_id, "seconds": 0})
            members = [SendRequest(domain, c["type"], c["data"], **_options(c)) for c in commands]
            self._bus.create_batch(members, batch_id=batch_id, on_complete=done)
        elif len(commands) == 1:
            (one,) = commands
            self._bus.send(one["domain"], one["type"], one["data"], **_options(one))
        else:
            self._bus.send_many(
                [SendRequest(c["domain"], c["type"], c["data"], **_options(c)) for c in commands]
            )

    def _send_key(self) -> None:
        """Under a key that others use as well, in a transaction of which every other one is undone."""
        # Some wait for a while, so that sends of one key meet.
        delay = self._chance.choice((0, 0, self._chance.uniform(0.1, 0.5)))
        command = self._new_command() | {"type": "note", "priority": 5, "delay": delay}
        command = {name: value for name, value in command.items() if name not in ("group", "reply_to")}
        command["data"] = {"seconds": 0, "failures": 0}
        domain, key = command["domain"], f"key {self._chance.randrange(self._keys)}"
        keep = self._chance.random() < 0.5
        self._journal.write("key_invoked", command=command | {"key": key}, keep=keep)
        fate: dict[str, Any] = {"id": command["id"], "key": key}
        committing = False
        try:
            connection = self._own_connection()
            sent = self._bus.within(connection).send(
                domain,
                "note",
                command["data"],
                command_id=command["id"],
                unique_key=key,
                delay=delay or None,
            )
            holder = str(sent.command_id) if sent.duplicate else None
            committing = keep
            connection.commit() if keep else connection.rollback()
        except (CommandBusError, psycopg.Error, sqlite3.Error) as error:
            # Before its commit nothing of a transaction can last.
            how = "key_unknown" if committing else "key_undone"
            self._journal.write(how, error=str(error), **fate)
            self._let_go()
            self._stop.wait(0.05)
        else:
            self._journal.write("key_kept" if keep else "key_undone", holder=holder, **fate)

    def _own_connection(self) -> Any:
        """A connection of the sender's own, as an application has one."""
        if self._connection is None:
            url = self._callers_url
            if url.startswith("sqlite"):
                path, _ = location.parse(url)
                self._connection = sqlite3.connect(path, timeout=20, isolation_level=None)
            else:
                self._connection = psycopg.connect(url, connect_timeout=5, prepare_threshold=None)
        return self._connection

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _options(command: dict[str, Any]) -> dict[str, Any]:
    return {
        "command_id": command["id"],
        "priority": command["priority"],
        "delay": command["delay"] or None,
        "reply_to": command.get("reply_to"),
        "group_key": command.get("group"),
    }


def unanswered(history: str) -> list[Group]:
    """Groups of commands whose send was begun and has no answer."""
    groups: dict[str, Group] = {}
    for event in read(history):
        if event["event"] == "send_invoked":
            kept = ("commands", "batch", "domain")
            group = {name: event[name] for name in kept if name in event}
            groups[event["commands"][0]["id"]] = group
        elif event["event"].startswith("send_") and event["event"] != "send_unknown":
            groups.pop(event["ids"][0], None)
    return list(groups.values())
