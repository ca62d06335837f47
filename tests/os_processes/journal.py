"""What a process did, line by line, in a file that survives its death.

Each line is one `write` to a file opened with O_APPEND: lines of many processes never mix, and a
process that is killed loses nothing that it wrote before. One that is killed while it writes may leave
the beginning of a line, as if it had died just before; the next one begins a line of its own.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import time as now
from typing import Any


class Journal:
    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, event: str, **facts: Any) -> None:
        line = json.dumps({"event": event, "at": now(), "pid": os.getpid()} | facts)
        os.write(self._file, b"\n" + line.encode() + b"\n")


def read(path: str | Path) -> Iterator[dict[str, Any]]:
    """The lines of a journal; none where nothing was written yet."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    for line in text.splitlines():
        if line.endswith("}"):
            with suppress(json.JSONDecodeError):
                yield json.loads(line)
