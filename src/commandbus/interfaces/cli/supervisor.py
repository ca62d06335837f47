"""Worker processes under one command: started, watched, restarted, stopped together."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

from commandbus.domain.process_identity import ProcessEntry, ProcessIdentity
from commandbus.interfaces.cli import output
from commandbus.interfaces.cli.alarm import Alarm
from commandbus.interfaces.cli.child_probes import ChildProbes
from commandbus.interfaces.cli.exits import Exit
from commandbus.interfaces.cli.signals import DRAINED, SUPERVISOR
from commandbus.interfaces.cli.supervision import Supervision, sign_seconds
from commandbus.runtimes.probes import notify_systemd
from commandbus.runtimes.recovery import (
    ProcessEnd,
    Recordings,
    SharedBus,
    end_of,
    memory_kills,
    recordings_of,
    recover_dead,
)
from commandbus.store.process_list import child_process, is_seen_stopped

HOPELESS = frozenset({Exit.USAGE, Exit.NO_APP})
"""Exit codes that another try would not change, of a process that has taken no work: a handler may end
its process with any code."""
HOPELESS_WHEN_YOUNG = frozenset({Exit.STORE, Exit.SCHEMA})
"""The same for a new process; of one that worked before, the store may come back."""
SYSTEMD = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
YOUNG_SECONDS = 5.0
RESTART_SECONDS = 1.0
LOOK_SECONDS = 0.1
OVERDUE_SECONDS = 3.0
"""A process that lets a handler run so much longer than its timeout cannot stop it: its event loop is
blocked, or the interpreter."""
CERTAIN_SECONDS = 2.0
"""It has to be seen for so long: after a pause of the whole machine everything is late for a moment."""
MEMORY_SECONDS = 5.0
"""How often to count the kills for memory. The end of a process is compared with the count before the
last one: the kernel counts a kill some time before the process has ended."""
SCARCE = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
"""Errors of a start that succeeds later: memory, processes or files of the machine are used up."""
RECOVERY_SECONDS = 5.0
"""How long the end of this process waits for what dead processes held to be given back."""


@dataclass(slots=True)
class _Child:
    index: int
    process: subprocess.Popen[bytes]
    identity: ProcessIdentity
    started: float
    memory_kills: deque[int]
    """The last two counts."""
    counted_at: float
    restart_at: float | None = None
    signals: int = 0
    """How many of the supervisor's signals it was sent."""
    is_over: bool = False
    """Its end was noticed."""
    took_work: bool = False
    looked_at: float = 0.0
    overdue_since: float | None = None
    end: ProcessEnd | None = None
    """Why this process ended it."""


class Supervisor:
    """Keeps a number of worker processes alive, gives back what those that died held, and passes
    signals on to them. It notifies systemd's watchdog itself, because systemd accepts that only from
    the process that it started."""

    def __init__(
        self,
        arguments: list[str],
        url: str,
        supervision: Supervision,
        processes: int,
        recorder: str | None = None,
    ) -> None:
        self._arguments = arguments
        self._url = url
        self._supervision = supervision
        inherited = {key: value for key, value in os.environ.items() if key not in SYSTEMD}
        # Not on the command line, where everyone on the machine could read a password in it.
        self._environment = inherited | {"COMMANDBUS_URL": url, SUPERVISOR: str(os.getpid())}
        self._count = processes
        self._recorder = recorder
        self._recordings: list[Recordings | None] | None = None
        """Looked up when they are needed first: it takes the driver of the store to name them."""
        self._recoveries: list[threading.Thread] = []
        self._bus = SharedBus(url)
        self._stopping = threading.Event()
        self._probes = ChildProbes(supervision, processes)
        self._children: list[_Child] = []
        self._alarm = Alarm()
        self._signals = 0

    def run(self) -> int:
        """Until a signal has stopped them all, or nothing is left to do for any of them; returns the
        worst exit code."""
        with self._probes.served(), self._alarm:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._hear)
            if self._count > 1:
                output.note(f"starting {self._count} worker processes")
            self._children = [self._start(index) for index in range(self._count)]
            threading.Thread(target=self._report_ready, daemon=True).start()
            return self._watch()

    def _report_ready(self) -> None:
        """Tell systemd when a worker process can take work. In a thread: the process may be stuck."""
        while os.environ.get("NOTIFY_SOCKET") and not self._signals:
            if self._probes.is_ready():
                notify_systemd("READY=1")
                return
            time.sleep(LOOK_SECONDS)

    def _watch(self) -> int:
        worst, signed = 0, 0.0
        while True:
            if time.monotonic() >= signed + sign_seconds():
                notify_systemd("WATCHDOG=1")
                signed = time.monotonic()
            for child in self._children:
                worst = max(worst, self._look_after(child))
            if os.getpid() == 1:
                reap_orphans({child.process.pid for child in self._children})
            is_over = self._signals or all(child.process.poll() == DRAINED for child in self._children)
            if is_over and all(child.process.poll() is not None for child in self._children):
                return worst or self._farewell()
            if worst and not self._signals:
                self._hear(signal.SIGTERM, None)
            self._alarm.wait(LOOK_SECONDS)

    def _farewell(self) -> int:
        """How those ended that were stopped. One that had not begun yet is ended by the signal itself,
        which is just as clean; and one that died before the signal was reported then."""
        until = time.monotonic() + RECOVERY_SECONDS
        for child in self._children:
            self._look_after(child)
        self._stopping.set()
        for recovery in self._recoveries:
            recovery.join(max(0.0, until - time.monotonic()))
        clean = (Exit.OK, DRAINED, -signal.SIGTERM)
        stopped = [child for child in self._children if child.restart_at is None]
        failed = any(child.process.returncode not in clean for child in stopped)
        return Exit.FAILURE if failed else Exit.OK

    def _start(self, index: int) -> _Child:
        # A process group of its own: Ctrl-C reaches this process only, which then passes it on.
        process = subprocess.Popen(  # noqa: S603 - this program, with its own arguments
            [
                *(sys.executable, "-m", "commandbus", "worker", *self._arguments),
                *self._supervision.of_process(index, self._count),
            ],
            env=self._environment | self._probes.environment(index),
            process_group=0,
        )
        now, kills = time.monotonic(), deque([memory_kills()] * 2, 2)
        return _Child(index, process, child_process(process.pid), now, kills, now)

    def _start_again(self, child: _Child) -> None:
        try:
            self._children[child.index] = self._start(child.index)
        except OSError as error:
            if error.errno not in SCARCE:
                raise
            output.warn(f"a worker process cannot be started, trying again: {error}")
            child.restart_at = time.monotonic() + RESTART_SECONDS

    def _look_after(self, child: _Child) -> int:
        """Restart a process that died; returns its exit code when that would be pointless."""
        code, now = child.process.poll(), time.monotonic()
        if code is not None and not child.is_over:
            child.is_over = True
            child.took_work = self._took_work(child, now)  # before its recorder is removed
            self._give_back(child, code)
        if code is None:
            self._pass_on(child)
            self._count_memory_kills(child, now)
            self._end_if_stuck(child, now)
        if code is None or code == DRAINED or self._signals:
            return 0
        if child.restart_at is None:
            is_young = now - child.started < YOUNG_SECONDS
            is_hopeless = code in HOPELESS or (code in HOPELESS_WHEN_YOUNG and is_young)
            if is_hopeless and not child.took_work:
                return code
            if code == Exit.OK:  # it has ended in order
                output.note(f"worker process {child.process.pid} has ended; starting another")
                child.restart_at = now
            else:
                output.warn(f"worker process {child.process.pid} ended with {code}; starting another")
                child.restart_at = now + RESTART_SECONDS
        if now >= child.restart_at:
            self._start_again(child)
        return 0

    def _took_work(self, child: _Child, now: float) -> bool:
        """Whether a process that ended had begun to work. Where workers keep no recorder, one that
        lived for a while counts as such."""
        recordings = self._recordings_here()
        if recordings is None:
            return now - child.started >= YOUNG_SECONDS
        return recordings.has(child.identity.entry)

    def _recordings_here(self) -> Recordings | None:
        if self._recordings is None:
            self._recordings = [recordings_of(self._url, self._recorder)]
        return self._recordings[0]

    def _count_memory_kills(self, child: _Child, now: float) -> None:
        """Forget those of other processes that are long over, which did not end this one."""
        if now >= child.counted_at + MEMORY_SECONDS:
            child.counted_at = now
            child.memory_kills.append(memory_kills())

    def _end_if_stuck(self, child: _Child, now: float) -> None:
        """Kill a process that cannot end a handler which is over its timeout. One that a signal or a
        debugger has stopped ends it when it goes on."""
        if now < child.looked_at + 1.0:
            return
        child.looked_at = now
        recordings = self._recordings_here()
        overdue = 0.0 if recordings is None else recordings.overdue(child.identity.entry, now)
        if overdue < OVERDUE_SECONDS or is_seen_stopped(child.identity):
            child.overdue_since = None
        elif child.overdue_since is None:
            child.overdue_since = now
        elif now >= child.overdue_since + CERTAIN_SECONDS:
            pid = child.process.pid
            why = f"it let a handler run {overdue:.0f} s longer than its timeout"
            cause = f"Its worker process {pid} was killed by its supervisor: {why}"
            child.end = ProcessEnd(cause, from_inside=True)
            output.warn(f"worker process {pid} is killed: {why}")
            child.process.kill()

    def _give_back(self, child: _Child, code: int) -> None:
        """What a process held that did not end in order goes back, in a thread: the store may not
        answer. If that fails, the next worker on this machine does it."""
        if code in (Exit.OK, DRAINED) or os.name != "posix":
            return
        pid = child.process.pid
        for_memory = memory_kills() > child.memory_kills[0]
        ends = {child.identity.entry: child.end or end_of(pid, code, for_memory)}
        self._recoveries = [thread for thread in self._recoveries if thread.is_alive()]
        recovery = threading.Thread(target=self._recover, args=(ends,), daemon=True)
        self._recoveries.append(recovery)
        recovery.start()

    def _recover(self, ends: dict[ProcessEntry, ProcessEnd]) -> None:
        try:
            recordings = recordings_of(self._url, self._recorder)
            if recordings is not None:
                recover_dead(self._bus, recordings, os.getpid(), ends, self._stopping)
        except Exception as error:  # this process goes on, whatever is wrong with the store
            output.warn(f"commands of a dead process are not given back yet: {error}")

    def _hear(self, number: int, frame: FrameType | None) -> None:
        """A signal may come while a process is being started, which is not among the children yet. So
        signals are passed on by the loop that looks after the children."""
        self._signals += 1
        notify_systemd("STOPPING=1")
        if self._signals >= 3:
            for child in self._children:
                child.process.send_signal(signal.SIGTERM)
            os._exit(Exit.FAILURE)

    def _pass_on(self, child: _Child) -> None:
        """One signal in each round, because two equal ones at once would arrive as one."""
        if child.signals < self._signals:
            child.signals += 1
            child.process.send_signal(signal.SIGTERM)


def reap_orphans(children: set[int]) -> None:
    """Take the status of processes that have ended and are not among these children. As the first
    process of a container, this one gets those that handlers started and left."""
    with suppress(ChildProcessError):  # none at all
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid in children:
                return  # that status is for the watch of the child; others follow in the next round
            os.waitpid(ended.si_pid, 0)
