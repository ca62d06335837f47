"""`python -m bench.poisoned`: every connection of a worker leads to nowhere, in both runtimes.

With the default settings a statement is given up before the worker is CRITICAL, and it finds new
connections by itself; with less patience for silence, the watchdog is faster. Prints when.
"""

import logging

from tests.postgres.test_layers import poisoned


def main() -> None:
    logging.disable(logging.CRITICAL)  # much is said about what nobody answers
    for name, settings in (
        ("default settings", {}),
        ("5 s for a statement, 10 s of silence", {"statement_timeout": 5.0, "silence_timeout": 10.0}),
    ):
        for runtime in ("asyncio", "threads"):
            healing = poisoned(runtime, poll_interval=1.0, **settings)
            ill = healing.critical_after
            state = "never CRITICAL" if ill is None else f"CRITICAL after {ill:.1f} s"
            print(
                f"{runtime}, {name}: {state}, {healing.restarts} restarts, "
                f"at work again after {healing.healed_after:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
