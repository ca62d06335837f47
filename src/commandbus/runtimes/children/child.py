"""The program of a child process: it imports the handlers, then runs one command after another.

Handlers run in the main thread, `async def` ones on a loop of the child's own, because only there a
signal can end them: the worker writes the reason to a socket of its own and rings with SIGUSR1.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import logging
import os
import runpy
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from functools import partial
from types import ModuleType
from typing import Any

import msgspec

from commandbus.domain import payload
from commandbus.domain.cause import running
from commandbus.domain.outcome import as_result
from commandbus.errors import (
    HandlerTimeout,
    InvalidOperationError,
    LeaseLost,
    PayloadError,
    PermanentCommandError,
)
from commandbus.runtimes.containment import contained, uncontained
from commandbus.store.records import CancelRequest
from commandbus.worker.context import HandlerContext, SyncHandlerContext
from commandbus.worker.encoding import command_of_claimed, undecodable
from commandbus.worker.isolation.crossing import pack, unpack
from commandbus.worker.isolation.messages import (
    Answer,
    Ask,
    Call,
    Done,
    FromChild,
    Inbox,
    Logged,
    Raised,
    Ready,
    Setup,
    Stop,
    ToChild,
    decode_stop,
    frame,
    raw,
)
from commandbus.worker.isolation.options import MAIN_ALIAS, find_function
from commandbus.worker.isolation.preparing import prepare
from commandbus.worker.isolation.services import child_services
from commandbus.worker.signatures import is_async, payload_codec, payload_type_of
from commandbus.worker.typed import FunctionCommandType

_CHUNK = 65_536
_PR_SET_PDEATHSIG = 1
_STOP_BYTES = 4_096


def main() -> None:
    talk, bell = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    talk.set_inheritable(False)
    bell.set_inheritable(False)
    bell.setblocking(False)
    faulthandler.enable()
    Child(talk, bell).run()


class _Target(msgspec.Struct, frozen=True):
    """A handler as the child found it."""

    function: Callable[..., Any]
    decode: Callable[[str], Any]
    encode: Callable[[Any], str | None]
    is_async: bool
    payload_name: str


class Child:
    def __init__(self, talk: socket.socket, bell: socket.socket) -> None:
        self._talk = talk
        self._bell = bell
        self._inbox: Inbox[ToChild] = Inbox(ToChild)
        self._asking = threading.RLock()
        """Held by who waits for an answer; handlers may have threads of their own."""
        self._targets: dict[tuple[str, str], _Target] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._requests: dict[int, CancelRequest] = {}
        self._stops: deque[Stop] = deque()
        self._number = self._seq = 0
        self._open: int | None = None
        """The number of the call that may ask. Between calls none may: the next message is a call."""
        self._pid = os.getpid()
        self._began = 0.0
        self._in_handler = self._timed_out = False
        self._in_exchange = 0

    def run(self) -> None:
        """Until the worker closes its end."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's; the worker decides
        signal.signal(signal.SIGUSR1, self._rung)
        os.register_at_fork(after_in_child=self._let_go)
        setup = self._hear()
        assert isinstance(setup, Setup)
        _end_with(setup.worker_pid)
        try:
            self._prepare(setup)
        except BaseException as error:  # also sys.exit of a module: the worker gets the reason
            self._say(Raised(0, pack(error), "start"))
            return
        self._say(Ready())
        while (call := self._hear()) is not None:
            assert isinstance(call, Call)
            self._open = call.number
            end = self._run(call)
            with self._undisturbed():  # an exchange of another thread ends first
                self._open = None
                self._say(end)
        if self._loop is not None:
            self._loop.close()

    def _prepare(self, setup: Setup) -> None:
        sys.path[:] = setup.path
        sys.argv[:] = setup.argv
        with prepare():
            if setup.main is not None:
                kind, place = setup.main
                run = partial(runpy.run_module, alter_sys=True) if kind == "module" else runpy.run_path
                # In its modules, so that classes of it are found by their names.
                main = sys.modules[MAIN_ALIAS] = sys.modules["__main__"] = ModuleType(MAIN_ALIAS)
                main.__dict__.update(run(place, run_name=MAIN_ALIAS))
            for module in setup.modules:
                importlib.import_module(module)
        root = logging.getLogger()
        if not root.handlers:
            root.addHandler(_Forward(self._say))
            root.setLevel(setup.log_level)

    # Talking to the worker.

    def _say(self, message: FromChild) -> None:
        # A worker that is gone is noticed by the next read.
        with self._undisturbed(), suppress(BrokenPipeError):
            self._talk.sendall(frame(message))

    def _hear(self) -> ToChild | None:
        while (message := self._inbox.take()) is None:
            received = self._talk.recv(_CHUNK)
            if not received:
                return None
            self._inbox.feed(received)
        return message

    def _let_go(self) -> None:
        """In a process that the handler has forked: the end of this one must be seen."""
        self._talk.close()
        self._bell.close()

    def _ask(self, number: int, method: str, arguments: Any, kind: Any) -> Any:
        """Let the worker do something for a call. Raises LeaseLost when that call has ended."""
        if os.getpid() != self._pid:
            raise InvalidOperationError(
                "A process that a handler has forked cannot use its context: use it in the handler."
            )
        question = frame(Ask(number, method, raw(arguments)))
        with self._undisturbed():
            if number != self._open:
                raise LeaseLost("The handler has ended; a thread that it left cannot use its context.")
            self._talk.sendall(question)
            answer = self._hear()
        if answer is None:
            os._exit(1)  # the worker is gone
        assert isinstance(answer, Answer)
        assert answer.number == number
        if answer.error is not None:
            raise unpack(answer.error)
        return msgspec.msgpack.decode(answer.value, type=kind)

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """One thread at a time, and no exception of a signal between the parts of an exchange."""
        if os.getpid() != self._pid:
            os._exit(1)  # a process that the handler has forked, and the handler returned there, too
        mine = threading.current_thread() is threading.main_thread()
        with self._asking:
            self._in_exchange += mine
            try:
                yield
            finally:
                self._in_exchange -= mine
        if mine:
            self._obey()

    # Being interrupted.

    def _rung(self, *_: object) -> None:
        with suppress(BlockingIOError):
            while True:
                self._stops.append(decode_stop(self._bell.recv(_STOP_BYTES)))
        if not self._in_exchange:
            self._obey()

    def _obey(self) -> None:
        """Do what the bell rang for, as soon as the handler of that call runs."""
        if not self._in_handler:
            return
        for _ in range(len(self._stops)):
            with suppress(IndexError):  # the signal may come again meanwhile
                stop = self._stops.popleft()
                if stop.number > self._number:
                    self._stops.append(stop)  # its call has not been read yet
                elif stop.number == self._number:
                    self._stop(stop)
        if self._timed_out and self._task is None:
            self._in_handler = False  # once: the handler may need a moment to tidy up
            raise HandlerTimeout(time.monotonic() - self._began)

    def _stop(self, stop: Stop) -> None:
        if stop.cancel is not None:
            self._requests[self._seq] = stop.cancel
        else:
            self._timed_out = True
        if self._task is not None:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._task.cancel)

    # Running a handler.

    def _run(self, call: Call) -> Done | Raised:
        self._requests.clear()
        self._number, self._seq, self._timed_out = call.number, call.claimed.seq, False
        if call.cancel is not None:
            self._requests[self._seq] = call.cancel
        if call.memory is not None:
            _limit_memory(call.memory)
        try:
            return Done(call.number, self._result_of(call))
        except BaseException as error:  # also SystemExit: a handler ends its command, not its process
            if call.memory is not None:
                _limit_memory(None)  # to be able to say so
            cause: Any = "handler"
            if isinstance(error, MemoryError) and call.memory is not None:
                cause = "memory"
            elif isinstance(error, asyncio.CancelledError | HandlerTimeout) and self._timed_out:
                cause = "timeout"
            elif isinstance(error, asyncio.CancelledError) and self._requests:
                cause = "canceled"
            return Raised(call.number, pack(error), cause)
        finally:
            self._in_handler = False
            self._task = None
            if call.memory is not None:
                _limit_memory(None)
            with suppress(OSError, ValueError, AttributeError):  # it may be closed, or none
                sys.stdout.flush()

    def _result_of(self, call: Call) -> str | None:
        target = self._target(call.module, call.name)
        claimed = call.claimed
        try:
            command = command_of_claimed(claimed, target.decode(claimed.data))
        except Exception as error:  # a payload type may raise anything in its validation
            raise undecodable(target.payload_name, error) from None
        services = child_services(
            partial(self._ask, call.number), call.worker, target.is_async, self._requests
        )
        kind = HandlerContext if target.is_async else SyncHandlerContext
        context = kind(claimed, call.max_attempts, services)
        own = copy_context()
        own.run(running.set, command)
        self._began = time.monotonic()
        if target.is_async:
            coroutine = own.run(target.function, command, context)
            result = self._await(coroutine, own, call.cancel is not None)
        else:
            self._in_handler = True
            self._obey()
            result = own.run(target.function, command, context)
        self._in_handler = False
        try:
            return target.encode(result)
        except PayloadError as error:
            raise PermanentCommandError(
                "RESULT_NOT_JSON", f"The handler finished, but its result cannot be kept: {error}"
            ) from None

    def _await(self, coroutine: Any, own: Context, canceled: bool) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        loop = self._loop
        task = loop.create_task(contained(coroutine), context=own)
        self._task, self._in_handler = task, True
        self._obey()
        if canceled:
            task.cancel()
        try:
            return uncontained(loop.run_until_complete(task))
        finally:
            if left := asyncio.all_tasks(loop):
                for one in left:
                    one.cancel()
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    def _target(self, module: str, name: str) -> _Target:
        found = self._targets.get((module, name))
        if found is None:
            alias = MAIN_ALIAS if module == "__main__" else module
            handler = find_function(importlib.import_module(alias), name)
            if isinstance(handler, FunctionCommandType):
                typed: FunctionCommandType[..., Any] = handler
                found = _Target(
                    typed.handler,
                    typed.payload.decode,
                    typed.encode_result,
                    is_async(typed.function),
                    typed.payload.name,
                )
            else:
                codec = payload_codec(handler, payload_type_of(handler))
                found = _Target(
                    handler,
                    codec.decode,
                    lambda value: as_result(value, payload.encode).result,
                    is_async(handler),
                    codec.name,
                )
            self._targets[module, name] = found
        return found


class _Forward(logging.Handler):
    """Passes log records on to the worker process."""

    def __init__(self, say: Callable[[FromChild], None]) -> None:
        super().__init__()
        self._say = say
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        if os.getpid() != self._pid:  # a process that a handler has forked has no way to the worker
            if logging.lastResort is not None:
                logging.lastResort.handle(record)
            return
        try:
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
            fields = {**vars(record), "msg": text, "args": None, "exc_info": None, "exc_text": None}
            self._say(Logged({name: _plain(value) for name, value in fields.items()}))
        except HandlerTimeout:
            raise
        except Exception:  # a log line must not end a handler
            self.handleError(record)


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def _limit_memory(size: int | None) -> None:
    """Bound what this process may reserve, or no longer. Private memory, not address space: libraries
    map much more than they use."""
    import resource  # Windows has none

    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    most = resource.getrlimit(kind)[1]
    wanted = resource.RLIM_INFINITY if size is None else size
    bounds = [bound for bound in (wanted, most) if bound != resource.RLIM_INFINITY]
    with suppress(ValueError, OSError):  # a system may not have it
        resource.setrlimit(kind, (min(bounds, default=resource.RLIM_INFINITY), most))


def _end_with(worker_pid: int) -> None:
    """End when the worker does, also in the middle of a handler."""
    if sys.platform == "linux":
        import ctypes  # not on other systems, and in a child only

        with suppress(OSError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != worker_pid:  # it ended before
            os._exit(1)
        return

    def watch() -> None:
        while os.getppid() == worker_pid:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, name="commandbus-parent", daemon=True).start()
