"""Handlers in child processes: what may run in one, what both sides say, and what its end means.

Nothing here waits or starts a process; `runtimes/children` does, once for both runtimes. The worker's
side of a call is a plain blocking function, so that a shell runs it like any `def` handler.
"""
