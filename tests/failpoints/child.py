"""`python -m tests.failpoints.child '{…}'`: a process with a failpoint, started by the sweep."""

from tests.failpoints.sweep import child

if __name__ == "__main__":
    child()
