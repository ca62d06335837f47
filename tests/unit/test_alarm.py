"""The end of a child ends a wait."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from commandbus.interfaces.cli.alarm import Alarm

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no signal tells of the end of a child")


def test_a_wait_ends_when_a_child_ends() -> None:
    former = signal.getsignal(signal.SIGCHLD)
    with Alarm() as alarm:
        child = subprocess.Popen([sys.executable, "-c", ""])
        assert alarm.wait(60)
        child.wait()
    assert signal.getsignal(signal.SIGCHLD) is former


def test_without_a_signal_a_wait_ends_by_itself() -> None:
    with Alarm() as alarm:
        assert not alarm.wait(0.01)
