"""Groups and limits over many processes, some of which are killed."""

from collections import defaultdict
from functools import partial
from typing import Any

from commandbus import SendRequest
from tests.os_processes.lab import DOMAIN, Lab, wait_until


def members(lab: Lab, count: int, groups: int) -> None:
    """Commands of groups, each with its number within its group."""
    requests = [
        SendRequest(DOMAIN, "member", [n % groups, n // groups], group_key=f"g{n % groups}")
        for n in range(count)
    ]
    lab.bus.send_many(requests)


def histories(lab: Lab) -> dict[int, list[dict[str, Any]]]:
    """What happened to each group, in order."""
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for effect in lab.effects():
        found[effect["data"][0]].append(effect)
    return found


def has_begun(lab: Lab, worker: str) -> bool:
    return any(effect["worker"] == worker for effect in lab.effects())


def check_group(history: list[dict[str, Any]], killed: set[str]) -> None:
    """Each run ended before the next began, unless its process was killed: then the same command
    came again. First runs came in the order of sending."""
    running: dict[str, Any] | None = None
    for effect in history:
        if effect["event"] == "ended":
            assert running is not None, effect
            assert (running["id"], running["worker"]) == (effect["id"], effect["worker"])
            running = None
            continue
        if running is not None:
            assert running["worker"] in killed, f"two at once: {running} and {effect}"
            assert running["id"] == effect["id"], f"{effect} began before {running} had ended"
        running = effect
    numbers = list(dict.fromkeys(effect["data"][1] for effect in history))
    assert numbers == sorted(numbers)


def test_one_of_a_group_at_a_time_in_order_over_processes(lab: Lab, runtime: str) -> None:
    lab.workers([runtime] * 4, concurrency=4)
    members(lab, 400, groups=8)
    lab.wait_until_drained()
    found = histories(lab)
    assert sum(len(history) for history in found.values()) == 800
    for history in found.values():
        check_group(history, set())
    lab.check_integrity()


def test_a_killed_process_breaks_no_group(lab: Lab, runtime: str) -> None:
    options = {"concurrency": 4, "prefetch": 0, "visibility_timeout": 1.0}
    doomed = [lab.start("worker", runtime=runtime, **options) for _ in range(3)]
    names = [worker.expect("ready")["name"] for worker in doomed]
    lab.worker(runtime, **options)
    members(lab, 640, groups=16)  # as many as there are slots, so every worker gets some
    for worker, name in zip(doomed, names, strict=True):
        wait_until(partial(has_begun, lab, name), "it has begun something")
        worker.kill()
    lab.wait_until_drained()
    assert lab.statuses() == {"COMPLETED": 640}
    for history in histories(lab).values():
        check_group(history, set(names))
    lab.check_integrity()


def test_no_more_of_a_type_run_at_once_than_allowed(lab: Lab, runtime: str) -> None:
    lab.bus.set_limit(DOMAIN, "member", concurrency=3)
    lab.workers([runtime] * 3, concurrency=4)
    lab.bus.send_many([SendRequest(DOMAIN, "member", [0, n]) for n in range(90)])
    lab.wait_until_drained()
    running = most = 0
    for effect in lab.effects():
        running += 1 if effect["event"] == "began" else -1
        most = max(most, running)
    assert most <= 3
    assert lab.statuses() == {"COMPLETED": 90}


def test_a_rate_holds_for_all_processes_together(lab: Lab, runtime: str) -> None:
    lab.bus.set_limit(DOMAIN, "member", rate=40, burst=4)
    lab.workers([runtime] * 3, concurrency=4)
    lab.bus.send_many([SendRequest(DOMAIN, "member", [0, n]) for n in range(60)])
    lab.send(200)
    lab.wait_until_drained()
    effects = lab.effects()
    began = [effect["at"] for effect in effects if effect["event"] == "began"]
    # No machine is slow enough to make a rate too high: 56 tokens take 1.4 s to come.
    assert max(began) - min(began) >= 56 / 40 - 0.1
    others = [effect["at"] for effect in effects if effect["event"] == "handled"]
    assert max(others) < max(began), "another type does not wait for it"
