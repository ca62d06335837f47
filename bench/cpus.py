"""Cores of their own for the server and for the workers, so that neither takes the other's time."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cpus:
    server: frozenset[int]
    workers: frozenset[int]

    @classmethod
    def read(cls, text: str) -> Cpus:
        """From `0,1/2,3`: the server's cores, then those of workers and senders."""
        try:
            server, workers = ({int(one) for one in part.split(",")} for part in text.split("/"))
            there = os.sched_getaffinity(0)
        except (ValueError, AttributeError) as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not like 0,1/2,3 ({error})") from error
        if missing := (server | workers) - there:
            cores = ", ".join(map(str, sorted(there)))
            raise argparse.ArgumentTypeError(f"no core {min(missing)} here: there are {cores}")
        return cls(frozenset(server), frozenset(workers))

    def __str__(self) -> str:
        return "/".join(",".join(map(str, sorted(part))) for part in (self.server, self.workers))

    def give(self, server: int) -> None:
        """To the server with this process id, and to this process with all that it starts later."""
        for process in (server, *_children(server)):
            os.sched_setaffinity(process, self.server)
        os.sched_setaffinity(0, self.workers)


def _children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children")
    return [int(word) for word in listed.read_text().split()] if listed.exists() else []
