"""`python -m commandbus` is the same as `commandbus`."""

from __future__ import annotations

from commandbus.interfaces.cli import main

if __name__ == "__main__":
    main()
