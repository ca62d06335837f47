"""Seeded bugs."""


def switch_on(name: str) -> None:
    raise SystemExit(name)
