"""A process with a failpoint, started by the sweep."""

from tests.failpoints.sweep import child as main

__all__ = ["main"]
