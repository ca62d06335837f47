"""Fixed mutants, always tried: changes that tests once did not notice. And those that are never tried,
because they behave like the original."""

from __future__ import annotations

from pathlib import Path

from tests.mutation.mutants import Mutant

SRC = "src/commandbus/"
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
KNOWN: dict[str, tuple[str, str, str]] = {
    "the sizer is never started": (
        "runtimes/worker.py", "services.append(Sizer(self, low, high))", "pass",
    ),
    "the average process time is 0": (
        "worker/metrics.py", "return self.process_seconds / self.processed if self.processed else 0.0",
        "return 0.0",
    ),
    "no look after a reconnect": (
        "engines/postgres/listener.py", "self._hub.wake_all(RECONNECT)", "pass",
    ),
    "HealthStatus has no lock": (
        "worker/health.py", "self._lock = threading.Lock()",
        "self._lock = __import__('contextlib').nullcontext()",
    ),
    "create_pool checks no connection": (
        "engines/postgres/planning.py", '"check": ConnectionPool.check_connection,', "",
    ),
    "statement_timeout is set for the session": (
        "engines/postgres/transactions.py", "set_config('statement_timeout', '{milliseconds}', true)",
        "set_config('statement_timeout', '{milliseconds}', false)",
    ),
    "the memory queue's enqueue does not notify": (
        "engines/memory/queue.py", "self._watch_depth()\n            self._changed.notify()",
        "self._watch_depth()",
    ),
    "LISTEN is always on the default schema's channel": (
        "engines/postgres/listener.py", "channel_of(self._location.schema)",
        'channel_of("commandbus")',
    ),
    "a worker reports a wrong host": (
        "worker/base.py", "host=socket.gethostname(),", 'host="elsewhere",',
    ),
    "a worker reports a wrong pid": (
        "worker/base.py", "pid=os.getpid(),", "pid=1,",
    ),
    "handlers of the thread runtime share a context": (
        "runtimes/threads/worker.py",
        "own.run(call.handler.function, call.command, call.context)",
        "call.handler.function(call.command, call.context)",
    ),
}  # fmt: skip
"""By what they break: file, text, and what replaces it."""


def known_mutants(root: Path) -> tuple[list[Mutant], list[str]]:
    """The fixed mutants, and those whose text is not in the source any more."""
    found: list[Mutant] = []
    gone: list[str] = []
    for name, (file, old, new) in KNOWN.items():
        path = SRC + file
        source = (root / path).read_text(encoding="utf-8")
        start = source.find(old)
        if start < 0:
            gone.append(name)
            continue
        line = source.count("\n", 0, start) + 1
        found.append(Mutant(path, "fixed", line, "fixed", old, new, start, start + len(old), name=name))
    return found, gone


def equivalents() -> set[str]:
    """Keys of mutants that behave like the original; the argument is in the file, behind a #."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    return {line.partition("  #")[0].strip() for line in lines if line and not line.startswith("#")}
