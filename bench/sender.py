"""Sends from another process than the worker's: `python -m bench.sender '{"subject": "sqlite", …}'`.

`backlog` commands at once; or `paced` ones, each stamped with the moment before its send, at irregular
intervals that leave the worker idle in between.
"""

import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.measure import PAYLOAD


def main() -> None:
    order = json.loads(sys.argv[1])
    send = {"sqlite": _sqlite, "huey": _huey}[order["subject"]](order)
    for _ in range(order.get("backlog", 0)):
        send(PAYLOAD)
    chance = random.Random(1)
    for _ in range(order.get("paced", 0)):
        time.sleep(chance.uniform(0.02, 0.06))
        send({"at": time.time()})


def _sqlite(order: dict[str, Any]) -> Callable[[Any], object]:
    from commandbus.sync import SyncCommandBus

    bus = SyncCommandBus(order["url"])
    bus.open()
    return lambda data: bus.send("bench", "work", data)


def _huey(order: dict[str, Any]) -> Callable[[Any], object]:
    from bench.subjects.huey_sqlite import make_huey

    _, work = make_huey(order["file"], order["keep_results"])
    return work


if __name__ == "__main__":
    main()
