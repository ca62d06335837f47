"""The two runtimes: the only rooms that wait."""
