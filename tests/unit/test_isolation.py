"""What may run in a child process, what crosses, and what the end of a child means."""

from __future__ import annotations

import functools
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commandbus.domain.failure import classify
from commandbus.errors import (
    ConfigurationError,
    DuplicateCommandError,
    HandlerTimeout,
    PermanentCommandError,
    RetryAfter,
    Snooze,
)
from commandbus.runtimes.children.cgroup import Cgroup, find_parent
from commandbus.runtimes.children.process import Child
from commandbus.store.process_list import this_process
from commandbus.testing.conformance import isolated_handlers
from commandbus.worker.handlers import HandlerRegistry
from commandbus.worker.isolation.crossing import CrossedError, pack, unpack
from commandbus.worker.isolation.messages import Done, FromChild, Inbox, Ready, frame
from commandbus.worker.isolation.options import check_runnable, isolated_of
from commandbus.worker.isolation.orphans import end_orphans
from commandbus.worker.isolation.preparing import check_not_preparing, prepare
from commandbus.worker.isolation.verdicts import KILL_GRACE, Death, Watch, died
from commandbus.worker.marking import handler
from commandbus.worker.signatures import PROVIDED, Provided

MB = 1024**2


def top(command: Any, context: Any) -> None: ...


def hidden(command: Any, context: Any) -> None: ...


shadowed = hidden


def with_client(command: Any, context: Any, client: Provided[Path]) -> None: ...


def typed_with_client(order: int, client: Provided[Path] = PROVIDED) -> None: ...


class Methods:
    @handler("orders", "ship", isolation="process")
    def ship(self, command: Any, context: Any) -> None: ...


def refused(function: Any, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        HandlerRegistry().register("orders", "ship", function, isolation="process", **options)
    return str(caught.value)


def test_a_function_of_a_module_is_found_by_its_name() -> None:
    options = {"isolation": "process", "memory": "1.5GB", "soft_timeout": 2, "timeout": 3}
    found = isolated_of(top, options, {})
    assert found is not None
    assert (found.module, found.name) == (__name__, "top")
    assert (found.memory, found.soft_timeout) == (1536 * MB, 2.0)


def test_what_a_child_cannot_import_is_refused_with_its_file_and_line() -> None:
    def inner(command: Any, context: Any) -> None: ...

    here = Path(__file__).name
    assert "defined inside a function" in (text := refused(inner))
    assert f"{here}:{inner.__code__.co_firstlineno}" in text
    assert "is a lambda" in refused(lambda command, context: None)
    assert "a partial cannot be imported" in refused(functools.partial(top))
    with pytest.raises(ConfigurationError, match="a method cannot be imported"):
        HandlerRegistry().register_instance(Methods())


def test_what_stays_in_the_worker_process_is_refused() -> None:
    assert "transactional=True" in refused(top, transactional=True)
    assert "functools.cache" in refused(with_client)


def test_a_typed_command_with_a_provided_value_is_refused_with_its_file_and_line() -> None:
    with pytest.raises(ConfigurationError, match="provided value 'client', which stays in") as caught:
        HandlerRegistry("orders").command(isolation="process")(typed_with_client)
    line = typed_with_client.__code__.co_firstlineno
    assert f"{Path(__file__).name}:{line}" in str(caught.value)


def test_a_typed_command_inside_a_function_is_refused() -> None:
    registry = HandlerRegistry("orders")
    with pytest.raises(ConfigurationError, match="defined inside a function"):

        @registry.command(isolation="process")
        def ship(order: int) -> None: ...


def test_an_interactive_session_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    main = type(sys)("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(top, "__module__", "__main__")
    assert "interactive session" in refused(top)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"isolation": "thread"}, "the only kind is"),
        ({"memory": "256MB"}, 'memory=, which needs isolation="process"'),
        ({"soft_timeout": 1}, 'soft_timeout=, which needs isolation="process"'),
        ({"isolation": "process", "memory": "lots"}, "such as '256MB'"),
        ({"isolation": "process", "memory": "1MB"}, "at least 32MB"),
        ({"isolation": "process", "memory": True}, "memory=True"),
        ({"isolation": "process", "timeout": 1, "soft_timeout": 1}, "must be less than timeout=1"),
        ({"isolation": "process", "soft_timeout": -1}, "soft_timeout must be between"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        HandlerRegistry().register("orders", "ship", top, **options)


def test_a_name_that_leads_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    isolated = isolated_of(hidden, {"isolation": "process"}, {})
    assert isolated is not None
    check_runnable(isolated, hidden)
    monkeypatch.setattr(sys.modules[__name__], "hidden", top)
    with pytest.raises(ConfigurationError, match="write other decorators below"):
        check_runnable(isolated, shadowed)


def test_systems_without_the_means_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    isolated = isolated_of(top, {"isolation": "process", "memory": "64MB"}, {})
    assert isolated is not None
    monkeypatch.setattr(sys, "platform", "darwin")
    check_runnable(isolated, top)
    assert "macOS enforces no memory limit" in caplog.text
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ConfigurationError, match="on Linux or macOS, or in WSL"):
        check_runnable(isolated, top)


def test_a_script_that_starts_its_worker_when_imported_gets_an_error_with_the_cure() -> None:
    check_not_preparing()
    with prepare(), pytest.raises(ConfigurationError, match="__main__"):
        check_not_preparing()


def crossed(error: BaseException) -> BaseException:
    carried = msgspec.msgpack.encode(pack(error))
    return unpack(msgspec.msgpack.decode(carried, type=CrossedError))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("wrong"),
        KeyError("key"),
        FileNotFoundError(2, "No such file", "x"),
        PermanentCommandError("BROKEN", "no", {"a": [1]}),
        RetryAfter(7, "BUSY"),
        Snooze(3, "later"),
        HandlerTimeout(2.0),
        isolated_handlers.OutOfPaper("p", 3),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        SystemExit(3),
        ValueError("\ud800"),
    ],
)
def test_an_exception_arrives_as_what_it_was(error: BaseException) -> None:
    arrived = crossed(error)
    assert isinstance(arrived, type(error))
    sent, found = classify(error), classify(arrived)
    assert (found.kind, found.code, found.message, found.details, found.exception) == (
        sent.kind,
        sent.code,
        sent.message,
        sent.details,
        sent.exception,
    )
    for name, value in vars(error).items():
        assert getattr(arrived, name) == value


def test_an_exception_arrives_as_the_nearest_base_that_is_known() -> None:
    class Lazy(PermanentCommandError): ...

    class Strange(Exception):
        def __init__(self) -> None:
            self.connection = object()

        def __str__(self) -> str:
            raise RuntimeError("broken")

    arrived = crossed(Lazy("BROKEN", "no"))
    assert isinstance(arrived, PermanentCommandError)
    assert classify(arrived).code == "BROKEN"
    strange = classify(crossed(Strange()))
    assert strange.code == "Strange"
    assert "cannot be read" in strange.message
    group = crossed(ExceptionGroup("two", [ValueError("a")]))
    assert classify(group).code == "ExceptionGroup"
    duplicate = crossed(DuplicateCommandError("orders", "x"))  # type: ignore[arg-type]
    assert isinstance(duplicate, DuplicateCommandError)


def test_frames_are_put_together_however_they_arrive() -> None:
    whole = frame(Ready()) + frame(Done(1, '"x"'))
    for size in (1, 3, 7, len(whole)):
        inbox: Inbox[FromChild] = Inbox(FromChild)
        found: list[FromChild] = []
        for start in range(0, len(whole), size):
            inbox.feed(whole[start : start + size])
            while (message := inbox.take()) is not None:
                found.append(message)
        assert found == [Ready(), Done(1, '"x"')]


def test_a_long_message_is_put_together_once() -> None:
    inbox: Inbox[FromChild] = Inbox(FromChild)
    whole = frame(Done(1, "x" * 20 * MB)) + frame(Ready())
    began = time.process_time()
    for start in range(0, len(whole), 4096):
        inbox.feed(whole[start : start + 4096])
        if start + 4096 < len(whole):
            assert inbox.take() is None
    message = inbox.take()
    assert isinstance(message, Done)
    assert len(message.result or "") == 20 * MB
    assert inbox.take() == Ready()
    assert time.process_time() - began < 2  # with a copy for each part: 50 GB to copy


def test_a_message_that_arrives_in_drops_is_not_waited_for_longer() -> None:
    child = object.__new__(Child)
    child._socket, theirs = socket.socketpair()
    child._pidfd, child._inbox = None, Inbox(FromChild)
    stop = threading.Event()

    def drip() -> None:
        for byte in frame(Done(1, "x" * 200)):
            theirs.send(bytes([byte]))
            if stop.wait(0.05):
                return

    dripping = threading.Thread(target=drip, daemon=True)
    with theirs, child._socket:
        dripping.start()
        began = time.monotonic()
        assert child.hear(0.2) is None
        assert time.monotonic() - began < 5  # all of it takes 10 s
        stop.set()
        dripping.join()


def test_a_call_is_warned_once_and_then_killed() -> None:
    watch = Watch(2.0, None, now=10.0)
    assert watch.wait(11.0) == 1.0
    assert watch.overdue(11.0) is None
    assert watch.overdue(12.0) == "warn"
    assert watch.overdue(12.0) is None
    assert watch.wait(12.0) == pytest.approx(KILL_GRACE)
    assert watch.overdue(12.0 + KILL_GRACE) == "kill"


def test_a_soft_timeout_warns_earlier_and_the_kill_is_at_the_timeout() -> None:
    watch = Watch(2.0, 0.5, now=0.0)
    assert watch.overdue(0.5) == "warn"
    assert watch.wait(0.5) == 1.5
    assert watch.overdue(2.0) == "kill"
    assert Watch(None, None, 0.0).wait(0.0) is None
    soft = Watch(None, 1.0, 0.0)
    assert soft.overdue(1.0) == "warn"
    assert soft.wait(1.0) is None


@pytest.mark.parametrize(
    ("death", "code", "text"),
    [
        (
            Death(-11, 50 * MB),
            "CHILD_KILLED",
            "SIGSEGV (11). It had 50 MB at its peak, of memory=64",
        ),
        (Death(-9), "CHILD_KILLED", "kills so when memory runs out"),
        (Death(3), "CHILD_EXITED", "exited with code 3"),
        (Death(None), "CHILD_LOST", "is gone"),
        (Death(-9, 64 * MB, out_of_memory=True), "MEMORY_LIMIT", "more than memory=64 MB"),
    ],
)
def test_the_end_of_a_child_names_its_cause(death: Death, code: str, text: str) -> None:
    error = died(death, 64 * MB)
    assert error.code == code
    assert text in error.message


def test_a_cgroup_beside_the_workers_own_bounds_a_child(tmp_path: Path) -> None:
    """On a copy of the kernel's files: making real groups needs a delegated folder."""
    parent = tmp_path / "app.slice"
    (parent / "worker").mkdir(parents=True)
    (parent / "cgroup.procs").write_text("")
    (parent / "cgroup.subtree_control").write_text("cpu\n")
    own = "1:cpu:/x\n0::/app.slice/worker\n"
    assert find_parent(tmp_path, own) is None
    assert find_parent(tmp_path, "0::/\n") is None
    (parent / "cgroup.subtree_control").write_text("cpu memory\n")
    assert find_parent(tmp_path, own) == parent
    group = Cgroup.create(4711, parent)
    assert group is not None
    (folder,) = parent.glob("commandbus-*-4711")
    assert (folder / "cgroup.procs").read_text() == "4711"
    group.limit(64 * MB)
    assert (folder / "memory.max").read_text() == str(64 * MB)
    assert not group.killed
    (folder / "memory.events").write_text("oom 1\noom_kill 1\n")
    assert group.killed
    group.limit(None)
    assert (folder / "memory.max").read_text() == "max"


def test_no_cgroup_is_made_where_that_is_forbidden(tmp_path: Path) -> None:
    assert Cgroup.create(4711, tmp_path / "missing") is None


def test_an_exception_whose_class_is_known_is_of_that_class_again() -> None:
    assert type(unpack(pack(ValueError("odd")))) is ValueError


@pytest.mark.skipif(sys.platform != "linux", reason="children are only marked there")
def test_a_process_that_left_nothing_behind_has_no_orphans() -> None:
    assert end_orphans(this_process()) == 0
