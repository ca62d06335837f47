"""The flight recorder: what it keeps of a process that dies, and what its readers refuse."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from commandbus.domain.outcome import Succeeded
from commandbus.domain.process_identity import ProcessIdentity
from commandbus.services.crash_recovery import CrashRecovery
from commandbus.settings import WorkerSettings
from commandbus.store.deaths import WorkerDeath
from commandbus.store.process_list import this_process
from commandbus.store.records import Claimed, Settlement
from commandbus.testing.waiting import eventually
from commandbus.worker import recordings
from commandbus.worker.recorder import (
    ENTRY,
    ENTRY_BYTES,
    FREE,
    HEADER_BYTES,
    RUNNING,
    STATE,
    FlightRecorder,
    Header,
    _image,
    folder_for,
    make_private,
    open_recorder,
    owned_here,
)
from commandbus.worker.recordings import (
    SUPERVISOR_SECONDS,
    DamagedRecorderError,
    Recordings,
    read_recording,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="workers have no recorder there")

IDENTITY = "sqlite /somewhere/jobs.db"
GONE = ProcessIdentity(2**22 + 1, 1, "an earlier start", "", this_process().host)
"""A process of this machine that is not there."""


def claimed(seq: int, lease_id: int = 7, crashes: int = 0) -> Claimed:
    names: dict[str, Any] = dict.fromkeys(Claimed.__struct_fields__)
    names.update(seq=seq, lease_id=lease_id, attempt=1, crashes=crashes)
    return Claimed(**names)


def settlement(seq: int, lease_id: int = 7) -> Settlement:
    return Settlement(seq, lease_id, 1, Succeeded())


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "recorders"


@pytest.fixture
def folder(base: Path) -> Path:
    found = folder_for(str(base), IDENTITY)
    make_private(found)
    return found


@contextmanager
def recorder_in(folder: Path, capacity: int = 4) -> Iterator[FlightRecorder]:
    with closing(FlightRecorder(folder, Header("w-1", this_process(), capacity))) as recorder:
        yield recorder


def leave(
    folder: Path, process: ProcessIdentity = GONE, supervisor: int = 0, until: float = inf
) -> Path:
    """A file as a dead process leaves it, with one command that ran."""
    image = bytearray(_image(Header("w-dead", process, 4, supervisor)))
    ENTRY.pack_into(image, HEADER_BYTES, 5, 7, 5 ^ 7, until, RUNNING)
    path = folder / "w-dead.recorder"
    path.write_bytes(image)
    return path


class _Scope:
    """A store in which a dead worker holds nothing."""

    @property
    def store(self) -> Any:
        return self

    def held_by(self, worker: str) -> Iterator[Any]:
        yield from ()
        return []


def dead_in(folder: Path) -> list[str]:
    found = Recordings(folder).dead()
    for one in found:
        one.leave()
    return [one.recording.header.worker for one in found]


def paused_in(folder: Path, worker: str) -> WorkerDeath | None:
    """What is known of a worker whose process is stopped."""
    loss = Recordings(folder).loss_of(worker)
    return loss if loss is not None and loss.excused else None


class TestWriting:
    def test_a_command_is_running_then_finished(self, folder: Path) -> None:
        with recorder_in(folder) as recorder:
            recorder.began(claimed(1))
            assert read_recording(recorder.path.read_bytes()).running == {(7, 1): inf}
            recorder.ended(claimed(1))
            seen = read_recording(recorder.path.read_bytes())
            assert (seen.running, seen.finished) == ({}, {(7, 1)})

    def test_a_finished_command_is_known_until_its_place_is_the_oldest(self, folder: Path) -> None:
        with recorder_in(folder, capacity=3) as recorder:
            for seq in range(1, 5):
                recorder.began(claimed(seq))
                recorder.ended(claimed(seq))
            seen = read_recording(recorder.path.read_bytes())
            assert (seen.running, seen.finished) == ({}, {(7, 2), (7, 3), (7, 4)})

    def test_a_handler_that_was_left_behind_counts_until_its_outcome_is_recorded(
        self, folder: Path
    ) -> None:
        with recorder_in(folder, capacity=1) as recorder:
            recorder.began(claimed(1))
            recorder.settled([settlement(1)])
            recorder.ended(claimed(1))
            recorder.began(claimed(2))  # in its place
            seen = read_recording(recorder.path.read_bytes())
            assert (set(seen.running), seen.finished, seen.complete) == ({(7, 2)}, frozenset(), True)

    def test_the_same_command_under_a_new_lease_has_an_entry_of_its_own(self, folder: Path) -> None:
        with recorder_in(folder) as recorder:
            recorder.began(claimed(1, lease_id=7))
            recorder.began(claimed(1, lease_id=8))
            recorder.ended(claimed(1, lease_id=7))
            seen = read_recording(recorder.path.read_bytes())
            assert (set(seen.running), set(seen.finished)) == ({(8, 1)}, {(7, 1)})

    def test_more_commands_than_entries_make_it_incomplete_until_they_end(self, folder: Path) -> None:
        with recorder_in(folder, capacity=1) as recorder:
            recorder.began(claimed(1))
            recorder.began(claimed(2))
            assert not read_recording(recorder.path.read_bytes()).complete
            recorder.settled([settlement(2)])
            assert read_recording(recorder.path.read_bytes()).complete

    def test_what_runs_under_a_lost_lease_is_known_until_it_ends(self, folder: Path) -> None:
        with recorder_in(folder, capacity=1) as recorder:
            recorder.began(claimed(1))
            recorder.limited(claimed(1), 5.0)
            recorder.began(claimed(2))
            recorder.leases_gone([7])
            seen = read_recording(recorder.path.read_bytes())
            assert (seen.running, seen.complete) == ({(7, 1): inf}, True)
            recorder.ended(claimed(1))
            recorder.began(claimed(3, lease_id=8))
            seen = read_recording(recorder.path.read_bytes())
            assert (set(seen.running), seen.complete) == ({(8, 3)}, True)

    def test_a_timeout_is_kept_as_a_moment(self, folder: Path) -> None:
        with recorder_in(folder) as recorder:
            recorder.began(claimed(1))
            before = time.monotonic()
            recorder.limited(claimed(1), 5.0)
            (moment,) = read_recording(recorder.path.read_bytes()).running.values()
            assert before + 4.9 < moment <= time.monotonic() + 5.0

    def test_an_ordered_end_leaves_neither_file_nor_folder(self, folder: Path) -> None:
        with recorder_in(folder) as recorder:
            assert recorder.path.exists()
        assert not folder.exists()
        recorder.began(claimed(1))  # by a thread that was left behind

    def test_it_is_private(self, folder: Path) -> None:
        with recorder_in(folder) as recorder:
            assert recorder.path.stat().st_mode & 0o777 == 0o600
            assert folder.stat().st_mode & 0o777 == 0o700

    def test_off_means_none(self, base: Path) -> None:
        assert open_recorder("off", IDENTITY, "w") is None
        assert not base.exists()

    def test_a_folder_of_others_is_not_used(self, base: Path, caplog: pytest.LogCaptureFixture) -> None:
        base.mkdir(0o700)
        base.chmod(0o777)
        assert open_recorder(str(base), IDENTITY, "w") is None
        assert "mode 0700" in caplog.text

    def test_a_link_in_place_of_the_folder_is_not_used(self, base: Path, tmp_path: Path) -> None:
        (tmp_path / "trap").mkdir(0o700)
        base.symlink_to(tmp_path / "trap")
        assert open_recorder(str(base), IDENTITY, "w") is None
        assert list((tmp_path / "trap").iterdir()) == []

    def test_without_space_there_is_none_and_nothing_is_left(
        self, base: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(os, "write", lambda fd, data: 1)
        assert open_recorder(str(base), IDENTITY, "w") is None
        assert "no space" in caplog.text
        assert list(folder_for(str(base), IDENTITY).iterdir()) == []

    def test_a_name_that_does_not_fit_is_refused(self, base: Path) -> None:
        assert open_recorder(str(base), IDENTITY, "w" * 2000) is None

    @pytest.mark.parametrize("value", ["", "  ", 7])
    def test_a_setting_that_is_not_a_path_is_refused(self, value: Any) -> None:
        with pytest.raises(Exception, match="recorder must be None"):
            WorkerSettings(recorder=value)


class TestLoss:
    """The lease of a worker that lives has ended."""

    def test_what_it_had_not_begun_is_known(self, folder: Path) -> None:
        with recorder_in(folder) as recorder:
            recorder.began(claimed(1))
            recorder.began(claimed(2))
            recorder.ended(claimed(2))
            worker = recorder.path.name.removesuffix(".recorder")
            assert Recordings(folder).death_of(worker) is None
            loss = Recordings(folder).loss_of(worker)
        assert loss is not None
        assert (loss.running, loss.finished, loss.excused) == ({(7, 1), (7, 2)}, frozenset(), False)

    def test_nothing_is_known_of_another_worker(self, folder: Path) -> None:
        with recorder_in(folder):
            assert Recordings(folder).loss_of("w-elsewhere") is None


class TestDeath:
    def test_a_killed_process_leaves_what_it_ran(self, base: Path) -> None:
        code = (
            "import os, signal, sys\n"
            "from tests.unit.test_recorder import claimed, IDENTITY\n"
            "from commandbus.worker.recorder import open_recorder\n"
            "recorder = open_recorder(sys.argv[1], IDENTITY, 'w-killed')\n"
            "recorder.began(claimed(1)); recorder.began(claimed(2)); recorder.ended(claimed(2))\n"
            "print('ready', flush=True); sys.stdin.read()\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        folder = folder_for(str(base), IDENTITY)
        with subprocess.Popen(
            [sys.executable, "-c", code, str(base)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == b"ready\n"
            assert Recordings(folder).dead() == []  # it lives
            if this_process().started:
                process.send_signal(signal.SIGSTOP)
                loss = eventually(lambda: paused_in(folder, "w-killed"))
                assert (loss.running, loss.finished) == ({(7, 1)}, {(7, 2)})
                process.send_signal(signal.SIGCONT)
            process.stdin.close()
            process.wait()
        (dead,) = Recordings(folder).dead()
        death = dead.recording.death()
        assert (death.worker, death.running, death.finished) == ("w-killed", {(7, 1)}, {(7, 2)})
        assert f"process {process.pid}" in death.cause
        dead.remove()
        assert not folder.exists()

    @pytest.mark.parametrize(
        ("crashes", "kill", "noted"),
        [
            (2, "os.kill(os.getpid(), signal.SIGKILL)", True),
            (2, "os.killpg(0, signal.SIGKILL)", True),
            (2, "signal.pthread_kill(threading.get_ident(), signal.SIGKILL)", True),
            (2, "subprocess.run(['kill', '-9', str(os.getpid())])", False),
            (2, "os.kill(other.pid, signal.SIGKILL); os._exit(1)", False),
            (2, "os.kill(os.getpid(), signal.SIGSEGV)", False),
            (1, "os.kill(os.getpid(), signal.SIGKILL)", False),
        ],
    )
    def test_it_says_that_its_process_killed_itself_on_the_last_chance_of_a_command(
        self, base: Path, crashes: int, kill: str, noted: bool
    ) -> None:
        code = (
            "import os, signal, subprocess, sys, threading\n"
            "from tests.unit.test_recorder import claimed, IDENTITY\n"
            "from commandbus.worker.recorder import open_recorder\n"
            "other = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
            "recorder = open_recorder(sys.argv[1], IDENTITY, 'w-killed')\n"
            f"recorder.began(claimed(1, crashes={crashes}))\n"
            f"{kill}\n"
        )
        command = [sys.executable, "-c", code, str(base)]
        assert subprocess.run(command, start_new_session=True, check=False).returncode != 0
        (dead,) = Recordings(folder_for(str(base), IDENTITY)).dead()
        dead.leave()
        assert dead.recording.death().from_inside is (True if noted else None)
        assert dead.recording.death("killed", from_inside=False).from_inside is noted

    def test_a_file_of_an_earlier_start_of_the_machine_is_of_a_dead_process(self, folder: Path) -> None:
        leave(folder)
        assert dead_in(folder) == ["w-dead"]

    def test_a_reused_process_id_does_not_hide_a_death(self, folder: Path) -> None:
        leave(folder, replace(this_process(), started=1))
        assert dead_in(folder) == ["w-dead"]

    def test_a_live_process_counts_as_alive_although_its_lock_is_free(self, folder: Path) -> None:
        if not this_process().started:
            pytest.skip("this system does not list when processes were started")
        leave(folder, this_process())
        assert dead_in(folder) == []

    def test_a_file_of_another_machine_is_left_alone(self, folder: Path) -> None:
        path = leave(folder, ProcessIdentity(1, 1, "their start", "", "their-host"))
        assert dead_in(folder) == []
        assert path.exists()

    def test_a_supervisor_that_lives_acts_first(self, folder: Path) -> None:
        leave(folder, supervisor=os.getpid())
        now = [100.0]
        recordings = Recordings(folder, lambda: now[0])
        assert recordings.dead() == []
        now[0] += SUPERVISOR_SECONDS
        assert [one.leave() for one in recordings.dead()] == [None]
        (found,) = Recordings(folder).dead(of=os.getpid(), ended={GONE.entry})
        found.leave()

    def test_a_supervisor_leaves_a_child_whose_end_it_has_not_seen(self, folder: Path) -> None:
        leave(folder, supervisor=os.getpid())
        assert Recordings(folder).dead(of=os.getpid(), ended={replace(GONE, started=2).entry}) == []

    def test_the_death_of_a_worker_is_read_by_its_name(self, folder: Path) -> None:
        leave(folder)
        recordings = Recordings(folder)
        death = recordings.death_of("w-dead")
        assert death is not None
        assert (death.worker, death.running, death.complete) == ("w-dead", {(7, 5)}, True)
        assert recordings.has_dead()
        (held,) = recordings.dead()  # by the process that acts on it, too
        assert recordings.death_of("w-dead") == death
        assert recordings.has_dead()
        held.remove()
        assert recordings.death_of("w-dead") is None
        assert not recordings.has_dead()

    def test_nothing_is_known_of_workers_that_live_or_have_no_recorder(self, folder: Path) -> None:
        leave(folder, this_process())
        with recorder_in(folder):
            recordings = Recordings(folder)
            assert [recordings.death_of(name) for name in ("w-dead", "w-1", "w-2")] == [None] * 3
            assert not recordings.has_dead()

    def test_a_dead_worker_is_looked_at_again_for_claims_that_were_committed_late(
        self, folder: Path
    ) -> None:
        path, now = leave(folder), [0.0]
        counted: list[int] = []
        recovery = CrashRecovery(Recordings(folder), counted.append, lambda: now[0])
        looks = []
        while path.exists():
            if recovery.look():
                looks.append(now[0])
                next(recovery.work(_Scope()), None)  # type: ignore[arg-type]
                recovery.confirm()
            now[0] += 0.25
        assert looks == [0.0, 0.25, 0.75, 2.75, 10.75, 40.75]
        assert not recovery.look()

    def test_a_worker_that_ends_leaves_to_others_what_it_has_not_given_back(self, folder: Path) -> None:
        path = leave(folder)
        recovery = CrashRecovery(Recordings(folder), print)
        assert recovery.look()
        recovery.close()
        assert path.exists()
        assert recovery.look()
        next(recovery.work(_Scope()), None)  # type: ignore[arg-type]
        recovery.confirm()
        recovery.close()
        assert not path.exists()

    def test_recorders_of_this_process_are_not_opened(self, folder: Path) -> None:
        with recorder_in(folder) as recorder:
            assert recorder.path in owned_here()
            assert dead_in(folder) == []

    def test_a_command_over_its_time_is_seen_from_outside(self, folder: Path) -> None:
        leave(folder, until=100.0)
        recordings = Recordings(folder)
        assert recordings.overdue(GONE.entry, 103.0) == 3.0
        assert recordings.has(GONE.entry)

    def test_a_file_of_an_earlier_process_with_its_id_is_not_of_a_child(self, folder: Path) -> None:
        """A container that starts again gives its processes the same ids."""
        leave(folder, until=100.0)
        for other in (replace(GONE, started=2).entry, replace(GONE, namespace="pid:[7]").entry):
            assert Recordings(folder).overdue(other, 103.0) == 0.0
            assert not Recordings(folder).has(other)


class TestBadFiles:
    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"\0" * 100,
            b"\xff" * 5000,
            b"CMDBUSR1" + b"\xff" * 5000,
            _image(Header("w", GONE, 4))[:-1],
            _image(Header("w", GONE, 4)) + b"\0",
            _image(Header("w", GONE, 4)).replace(b'"pid"', b'"pif"'),
            _image(Header("w", GONE, 4))[:HEADER_BYTES],
            _image(Header("w", GONE, 4, supervisor=1 << 40)),
            _image(Header("w", GONE, 4, supervisor=-1)),
            _image(Header("w", ProcessIdentity(1 << 40), 4)),
        ],
        ids=[
            "empty",
            "short",
            "noise",
            "length",
            "truncated",
            "longer",
            "checksum",
            "no entries",
            "supervisor",
            "negative",
            "process",
        ],
    )
    def test_a_damaged_file_is_removed_and_means_nothing(
        self, folder: Path, content: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = folder / "w.recorder"
        path.write_bytes(content)
        assert dead_in(folder) == []
        assert not path.exists()
        assert "is removed" in caplog.text

    def test_a_file_without_a_header_is_of_no_dead_process(self, folder: Path) -> None:
        (folder / "w.recorder").write_bytes(b"\xff" * 5000)
        assert not Recordings(folder).has_dead()

    def test_a_header_that_claims_a_huge_size_is_refused(self) -> None:
        image = _image(Header("w", GONE, 4)).replace(b'"capacity":4', b'"capacity":9')
        with pytest.raises(DamagedRecorderError):
            read_recording(image)

    def test_an_entry_that_was_being_written_counts_as_not_begun(self, folder: Path) -> None:
        path = leave(folder)
        image = bytearray(path.read_bytes())
        ENTRY.pack_into(image, HEADER_BYTES + ENTRY_BYTES, 6, 7, 0, inf, RUNNING)
        ENTRY.pack_into(image, HEADER_BYTES + 2 * ENTRY_BYTES, 8, 7, 8 ^ 7, inf, FREE)
        image[HEADER_BYTES + 3 * ENTRY_BYTES + STATE] = 77
        assert set(read_recording(bytes(image)).running) == {(7, 5)}

    def test_links_pipes_and_folders_are_left_alone(self, folder: Path, tmp_path: Path) -> None:
        target = leave(folder)
        precious = tmp_path / "precious"
        target.rename(precious)
        (folder / "a.recorder").symlink_to(precious)
        os.link(precious, folder / "b.recorder")
        os.mkfifo(folder / "c.recorder")
        (folder / "d.recorder").mkdir()
        (folder / "notes.txt").write_text("not one of ours")
        assert dead_in(folder) == []
        assert precious.exists()
        assert len(list(folder.iterdir())) == 5

    def test_a_folder_that_others_can_write_is_not_read(self, folder: Path) -> None:
        leave(folder)
        folder.chmod(0o777)
        assert dead_in(folder) == []

    def test_a_file_that_never_got_its_name_is_removed_after_a_while(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = folder / ".w.recorder"
        path.write_bytes(b"half")
        with monkeypatch.context() as meanwhile:  # its worker, about to lock it, would be refused
            meanwhile.setattr(recordings, "lock", lambda fd: pytest.fail("it was locked"))
            assert dead_in(folder) == []
        assert dead_in(folder) == []
        assert path.exists()
        os.utime(path, (1, 1))
        assert dead_in(folder) == []
        assert not path.exists()
