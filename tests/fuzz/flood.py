"""A flood of hostile payloads and names: `python -m tests.fuzz.flood 1000000 --seed 1`.

Most go through the codec and the doors alone, at the speed of memory; a sample goes through every
engine and back. Hypothesis looks closer, at far fewer: see the tests beside this file.
"""

from __future__ import annotations

import argparse
import json
import random
import string
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from commandbus import CommandBusError, SendRequest
from commandbus.domain import payload
from commandbus.domain.names import as_name, as_tags, as_text
from commandbus.sync import SyncCommandBus
from commandbus.testing.postgres import PostgresServer, create_database
from tests.fuzz.fuzzing import HOSTILE, same

SAMPLE = 20
"""One in so many goes through every engine."""
GROUP = 500
NAME = frozenset(string.ascii_letters + string.digits + "_.:-")
EDGES = (
    0,
    -0.0,
    1e308,
    5e-324,
    float("nan"),
    float("inf"),
    2**63,
    -(2**63) - 1,
    2**64,
    2**70,
    True,
    None,
)


class Flood:
    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def text(self) -> str:
        chance = self._chance
        kind = chance.random()
        if kind < 0.4:
            return chance.choice(HOSTILE)
        if kind < 0.7:
            return chance.choice(HOSTILE) + chance.choice(HOSTILE)
        # Every plane of Unicode, control characters and surrogates included.
        top = chance.choice((0x80, 0x800, 0x10000, 0x110000))
        return "".join(chr(chance.randrange(top)) for _ in range(chance.randrange(8)))

    def name(self) -> str:
        chance = self._chance
        good = "".join(chance.choices("abcXYZ_019.:-", k=chance.randrange(1, 70)))
        return good if chance.random() < 0.5 else self.text() + good[:2]

    def value(self, depth: int = 0) -> Any:
        chance = self._chance
        kind = chance.random()
        if depth < 4 and kind < 0.2:
            return [self.value(depth + 1) for _ in range(chance.randrange(4))]
        if depth < 4 and kind < 0.45:
            return {self.text(): self.value(depth + 1) for _ in range(chance.randrange(4))}
        if kind < 0.65:
            return chance.choice(EDGES)
        if kind < 0.75:
            return chance.getrandbits(chance.randrange(1, 70))
        return self.text()


def flood(count: int, seed: int, problems: list[str]) -> tuple[int, int]:
    """Half payloads, half names; how many were taken, and how many went through the engines."""
    source = Flood(seed)
    taken = 0
    sampled: list[tuple[str, Any, str]] = []
    for number in range(count // 2):
        value, name = source.value(), source.name()
        kept = _payload(value, problems)
        taken += kept
        taken += _names(name, problems)
        if number % SAMPLE == 0:
            sampled.append((name, value, source.text()))
    through = sum(_through(url, sampled, problems) for url in _engines())
    return taken, through


def _payload(value: Any, problems: list[str]) -> bool:
    try:
        text = payload.encode(value)
    except CommandBusError:
        return False
    if not same(payload.decode(text), value) or not same(json.loads(text), value):
        problems.append(f"{value!r} came back as {text}")
    return True


def _names(name: str, problems: list[str]) -> bool:
    taken = False
    doors: tuple[tuple[Callable[[], Any], Any], ...] = (
        (lambda: as_name(name, "domain"), name),
        (lambda: as_text(name, "unique_key"), name),
        (lambda: as_tags([name]), (name,)),
    )
    for door, expected in doors:
        try:
            if door() != expected:
                problems.append(f"the name {name!r} was altered")
            taken = True
        except CommandBusError:
            continue
    try:
        if not NAME.issuperset(as_name(name, "domain")):
            problems.append(f"the name {name!r} was taken")
    except CommandBusError:
        pass
    return taken


def _engines() -> Iterator[str]:
    yield "memory://"
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{folder}/flood.db?synchronous=off"
    with PostgresServer.start() as server:
        yield create_database(server)


def _through(url: str, sampled: list[tuple[str, Any, str]], problems: list[str]) -> int:
    """Send each, in groups, and read it back."""
    count = 0
    with ExitStack() as stack:
        bus = stack.enter_context(SyncCommandBus(url, migrate=True))
        requests: list[SendRequest] = []
        for name, value, text in sampled:
            request = SendRequest("flood", "note", value, headers={text: text}, tags=[text])
            # Each by itself to the door, so that one that is refused does not refuse the others.
            try:
                payload.encode(value)
                payload.encode({text: text}, bytes_max=payload.HEADER_BYTES_MAX)
                as_tags([text])
            except CommandBusError:
                count += _refused(bus, request, problems)
                continue
            try:
                as_name(name, "domain")
            except CommandBusError:
                _refused(bus, SendRequest(name, "note"), problems)
            requests.append(request)
            if len(requests) == GROUP:
                count += _group(bus, requests, problems)
                requests = []
        count += _group(bus, requests, problems)
    return count


def _refused(bus: SyncCommandBus, request: SendRequest, problems: list[str]) -> int:
    try:
        bus.send_many([request])
    except CommandBusError:
        return 1
    problems.append(f"{request} was taken")
    return 1


def _group(bus: SyncCommandBus, requests: list[SendRequest], problems: list[str]) -> int:
    if not requests:
        return 0
    sent = bus.send_many(requests)
    wanted = {result.command_id: request for result, request in zip(sent, requests, strict=True)}
    found = list(bus.query_commands(domain="flood", limit=len(requests)))
    if {record.command_id for record in found} != wanted.keys():
        problems.append(f"{len(found)} of {len(requests)} commands came back")
    for record in found:
        request = wanted.get(record.command_id)
        if request is None:
            continue
        if not same(record.data, request.data) or record.headers != request.headers:
            problems.append(f"{request} came back as {record}")
        if list(record.tags) != list(request.tags):
            problems.append(f"the tags {request.tags!r} came back as {record.tags!r}")
    return len(requests)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.flood", description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    problems: list[str] = []
    taken, through = flood(options.count, options.seed, problems)
    print(json.dumps({"taken": taken, "through": through, "problems": problems[:20]}))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
