"""The hub: one waiter per event, nobody twice, nothing lost when a waiter leaves."""

from __future__ import annotations

import threading
from typing import Any

from commandbus.engines.postgres.listener import Listener
from commandbus.store.wakeup import Waiter, WakeHub

News = list[tuple[str, str, float | None]]


def waiter(hub: WakeHub, name: str, told: News, *domains: str, armed: bool = True) -> Waiter:
    made = hub.register(domains or ("a",), lambda source, due_in: told.append((name, source, due_in)))
    if armed:
        hub.arm(made)
    return made


def test_an_event_wakes_one_waiter() -> None:
    hub, told = WakeHub(), News()
    waiter(hub, "w1", told)
    waiter(hub, "w2", told)
    assert hub.wake("a", None, "notify")
    assert told == [("w1", "notify", None)]


def test_the_next_event_wakes_another_waiter_and_the_third_none() -> None:
    hub, told = WakeHub(), News()
    waiter(hub, "w1", told)
    waiter(hub, "w2", told)
    assert [hub.wake("a", None, "notify") for _ in range(3)] == [True, True, False]
    assert [name for name, _, _ in told] == ["w1", "w2"]


def test_a_waiter_must_arm_itself_again() -> None:
    hub, told = WakeHub(), News()
    first = waiter(hub, "w1", told)
    hub.wake("a", None, "notify")
    assert not hub.wake("a", None, "notify")
    hub.arm(first)
    assert hub.wake("a", None, "notify")


def test_load_is_shared_in_turn() -> None:
    hub, told = WakeHub(), News()
    waiters = [waiter(hub, name, told) for name in ("w1", "w2", "w3")]
    for _ in range(6):
        hub.wake("a", None, "notify")
        for each in waiters:
            hub.arm(each)
    assert [name for name, _, _ in told] == ["w1", "w2", "w3"] * 2


def test_only_waiters_of_the_domain_are_woken() -> None:
    hub, told = WakeHub(), News()
    waiter(hub, "b", told, "b")
    waiter(hub, "ab", told, "a", "b")
    hub.wake("a", None, "notify")
    assert told == [("ab", "notify", None)]
    assert not hub.wake("c", None, "notify")
    assert hub.armed_domains() == {"b"}


def test_a_due_time_goes_to_all_workers_and_leaves_them_as_they_are() -> None:
    hub, told = WakeHub(), News()
    waiter(hub, "w1", told)
    waiter(hub, "w2", told)
    waiter(hub, "busy", told, armed=False)
    hub.wake("a", 2.5, "notify")
    assert told == [("w1", "notify", 2.5), ("w2", "notify", 2.5), ("busy", "notify", 2.5)]
    hub.wake("a", None, "notify")
    assert told[3:] == [("w1", "notify", None)]


def test_a_disarmed_waiter_leaves_events_to_others() -> None:
    hub, told = WakeHub(), News()
    busy = waiter(hub, "busy", told)
    waiter(hub, "idle", told)
    hub.disarm(busy)
    assert [hub.wake("a", None, "notify") for _ in range(2)] == [True, False]
    assert told == [("idle", "notify", None)]


def test_an_expired_timer_is_the_turn_of_one_waiter_of_its_kind() -> None:
    hub, told = WakeHub(), News()
    first, second = waiter(hub, "w1", told), waiter(hub, "w2", told)
    tagged = hub.register(("a",), lambda *_: None, ("gpu",))
    assert hub.take_timer_turn(first, due_at=10.0, now=10.001)
    assert not hub.take_timer_turn(second, due_at=10.002, now=10.003)
    assert hub.take_timer_turn(first, due_at=10.02, now=10.02), "the leader keeps the next timer"
    assert hub.take_timer_turn(tagged, due_at=10.0, now=10.004), "its tags let it take other commands"
    assert hub.take_timer_turn(second, due_at=11.0, now=11.0), "a later time is a turn of its own"


def test_the_timers_of_a_waiter_that_left_are_taken_over() -> None:
    hub, told = WakeHub(), News()
    first, second = waiter(hub, "w1", told), waiter(hub, "w2", told)
    assert hub.take_timer_turn(first, due_at=10.0, now=10.0)
    hub.unregister(first)
    assert hub.take_timer_turn(second, due_at=10.0, now=10.0)


def test_a_due_time_of_zero_means_now() -> None:
    hub, told = WakeHub(), News()
    waiter(hub, "w1", told)
    waiter(hub, "w2", told)
    hub.wake("a", 0.0, "notify")
    assert told == [("w1", "notify", None)]


def test_a_waiter_that_leaves_passes_its_wakeup_on() -> None:
    hub, told = WakeHub(), News()
    first = waiter(hub, "w1", told)
    waiter(hub, "w2", told)
    hub.wake("a", None, "notify")
    hub.unregister(first)
    assert told == [("w1", "notify", None), ("w2", "chain", None)]


def test_a_waiter_that_left_hears_nothing_more() -> None:
    hub, told = WakeHub(), News()
    first = waiter(hub, "w1", told)
    hub.unregister(first)
    assert not hub.wake("a", None, "notify")
    hub.wake_all("reconnect")
    assert told == []


def test_after_a_reconnect_every_waiter_claims_once() -> None:
    hub, told = WakeHub(), News()
    waiter(hub, "w1", told)
    waiter(hub, "busy", told, armed=False)
    hub.wake_all("reconnect")
    assert told == [("w1", "reconnect", None), ("busy", "reconnect", None)]


def test_a_waiter_whose_callback_fails_harms_no_other() -> None:
    hub, told = WakeHub(), News()

    def broken(source: str, due_in: float | None) -> None:
        raise RuntimeError("Event loop is closed")

    hub.arm(hub.register(("a",), broken))
    waiter(hub, "w2", told)
    assert hub.wake("a", 1.0, "notify")
    assert told == [("w2", "notify", 1.0)]


def test_observers_hear_of_every_commit_until_they_stop() -> None:
    hub, heard = WakeHub(), list[str]()

    def broken() -> None:
        raise RuntimeError("Event loop is closed")

    stop_broken = hub.on_commit(broken)
    stop = hub.on_commit(lambda: heard.append("commit"))
    hub.committed()
    stop_broken()
    hub.committed()
    stop()
    hub.committed()
    assert heard == ["commit", "commit"]


def test_observers_hear_of_an_op_that_may_have_changed_something() -> None:
    hub, heard = WakeHub(), list[str]()
    hub.on_commit(lambda: heard.append("commit"))
    hub.after_commit([], read=True)
    assert heard == []
    hub.after_commit([])
    assert heard == ["commit"]


def test_a_watcher_waits_until_a_waiter_listens() -> None:
    hub, found = WakeHub(), list[bool]()
    watching = threading.Thread(target=lambda: found.append(hub.wait_until_listened()), daemon=True)
    watching.start()
    waiter(hub, "w1", News())
    watching.join(30)
    assert found == [True]


def test_a_watcher_of_the_busy_can_be_interrupted() -> None:
    hub = WakeHub()
    waiter(hub, "w1", News())
    hub.wake("a", None, "notify")
    hub.interrupt()
    assert hub.wait_until_listened() is False


def test_a_watcher_waits_again_after_an_interruption() -> None:
    hub, found = WakeHub(), list[bool]()
    hub.interrupt()
    hub.allow_watching()
    assert hub.wait_until_listened() is False
    watching = threading.Thread(target=lambda: found.append(hub.wait_until_listened()), daemon=True)
    watching.start()
    watching.join(0.05)
    waiter(hub, "w1", News())
    watching.join(30)
    assert found == [True]


def test_from_many_threads_each_event_wakes_exactly_one() -> None:
    hub, told = WakeHub(), News()
    for number in range(200):
        waiter(hub, f"w{number}", told)
    threads = [
        threading.Thread(target=lambda: [hub.wake("a", None, "notify") for _ in range(50)], daemon=True)
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(name for name, _, _ in told) == sorted(f"w{number}" for number in range(200))


def test_an_announcement_with_an_unreadable_due_time_means_now() -> None:
    hub, told = WakeHub(), News()
    listener: Any = Listener.__new__(Listener)
    listener._process, listener._hub, listener._again = "ours", hub, {}
    for payload in ("a other soon", "a other -5", "a other", "a"):
        waiter(hub, payload, told)
        listener._hear(payload)
    assert told == [(p, "notify", None) for p in ("a other soon", "a other -5", "a other", "a")]


def test_work_that_requires_tags_wakes_all_waiters() -> None:
    hub, told = WakeHub(), News()
    waiter(hub, "w1", told)
    waiter(hub, "w2", told)
    assert hub.wake("a", None, "notify", everyone=True)
    assert [name for name, _, _ in told] == ["w1", "w2"]


def test_the_sign_of_sleep_says_at_once_who_waits() -> None:
    hub, signs = WakeHub(), list[list[frozenset[str]]]()
    hub.sign_sleep(lambda armed, _: signs.append(list(armed)))
    first = waiter(hub, "w1", News())
    hub.disarm(first)
    assert signs == [[], [frozenset("a")], []]
