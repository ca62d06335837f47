"""One port for all worker processes of a supervisor: what each of them answers, put together.

Each worker process serves probes of its own on a free port of the loopback interface, and writes the
number of that port into a file. A probe here asks all of them at once.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from commandbus.interfaces.cli import output
from commandbus.interfaces.cli.supervision import PORT_FILE, Supervision
from commandbus.observe.text import CONTENT_TYPE
from commandbus.runtimes.small_http import Response, SmallServer

ASK_SECONDS = 4.0
"""More than a process takes that is well, less than orchestrators wait."""
_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+.*)$")
_SUFFIX = re.compile(r"_(bucket|sum|count)$")


class ChildProbes:
    """Asks the probes of worker processes, and serves the sum of their answers."""

    def __init__(self, supervision: Supervision, count: int) -> None:
        self._supervision = supervision
        self._count = count
        self._folder = Path(tempfile.mkdtemp(prefix="commandbus-")) if supervision.is_probed else None

    def environment(self, index: int) -> dict[str, str]:
        """For a process that is about to start; the port of an earlier one is forgotten."""
        if self._folder is None:
            return {}
        file = self._folder / str(index)
        file.unlink(missing_ok=True)
        return {PORT_FILE: str(file)}

    @contextmanager
    def served(self) -> Iterator[None]:
        """Serve them on the port that was asked for, if one was."""
        supervision = self._supervision
        routes: dict[str, Callable[[], Response]] = {
            "/livez": lambda: self._answer("/livez", "live", all),
            "/readyz": lambda: self._answer("/readyz", "ready", any),
            "/startupz": lambda: self._answer("/startupz", "started", any),
            "/metrics": self._metrics,
        }
        otherwise = (404, "application/json", json.dumps({"error": f"try {', '.join(routes)}"}))
        server: SmallServer | None = None
        try:
            if (port := supervision.probe_port) is not None:
                server = supervision.bound(
                    lambda: SmallServer(supervision.probe_host, port, routes, otherwise)
                )
                server.start()
                output.done(
                    f"probes at http://{supervision.probe_host}:{server.port}: {' '.join(routes)}"
                )
            yield
        finally:
            if server is not None:
                server.close()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def is_ready(self) -> bool:
        """Whether one of the processes can take work."""
        return any(status == 200 for status, _ in self._ask("/readyz"))

    def _answer(self, path: str, key: str, enough: Callable[[list[bool]], bool]) -> Response:
        """A process that is not there does not count: the supervisor is about to start it."""
        answers = self._ask(path)
        good = enough([status == 200 for status, _ in answers if status])
        body = {key: good, "processes": [_document(status, text) for status, text in answers]}
        return 200 if good else 503, "application/json", json.dumps(body)

    def _metrics(self) -> Response:
        answers = enumerate(self._ask("/metrics"))
        pages = {index: text for index, (status, text) in answers if status == 200}
        return 200, CONTENT_TYPE, merged(pages)

    def _ask(self, path: str) -> list[tuple[int, str]]:
        """What each process answers: its status and text; 504 for one that is frozen, 0 for one that is
        not there. Threads of their own for each question, so that none waits for another."""
        with ThreadPoolExecutor(self._count, "commandbus-child-probes") as asking:
            return list(asking.map(lambda index: self._ask_one(index, path), range(self._count)))

    def _ask_one(self, index: int, path: str) -> tuple[int, str]:
        assert self._folder is not None
        try:
            port = int((self._folder / str(index)).read_text(encoding="ascii"))
            connection = HTTPConnection("127.0.0.1", port, timeout=ASK_SECONDS)
            try:
                connection.request("GET", path)
                answer = connection.getresponse()
                return answer.status, answer.read().decode()
            finally:
                connection.close()
        except TimeoutError:
            return 504, ""
        except (OSError, ValueError, HTTPException):
            return 0, ""


def merged(pages: dict[int, str]) -> str:
    """One page of metrics out of several, every sample with the number of its process. The samples of a
    family stay together, as Prometheus wants them."""
    comments: dict[str, dict[str, None]] = {}
    samples: dict[str, list[str]] = {}
    for index, page in pages.items():
        for line in page.splitlines():
            if line.startswith("# "):
                comments.setdefault(line.split(" ")[2], {})[line] = None
            elif found := _SAMPLE.match(line):
                name = found["name"]
                family = name if name in comments else _SUFFIX.sub("", name)
                labels = f'process="{index}"' + (f",{found['labels']}" if found["labels"] else "")
                samples.setdefault(family, []).append(f"{name}{{{labels}}} {found['value']}")
    lines = [line for family, said in comments.items() for line in (*said, *samples.get(family, ()))]
    return "".join(f"{line}\n" for line in lines)


def _document(status: int, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"answered": status != 0}
