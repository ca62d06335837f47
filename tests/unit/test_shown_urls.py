"""URLs of stores as they may be shown."""

from __future__ import annotations

import pytest

from commandbus.store.urls import shown_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory://", "memory://"),
        ("sqlite:////var/lib/bus.db?synchronous=off", "sqlite:////var/lib/bus.db?synchronous=off"),
        ("postgresql://db.example:5432/shop", "postgresql://db.example:5432/shop"),
        ("postgresql://app@a:1,b:2/shop?schema=bus", "postgresql://app@a:1,b:2/shop?schema=bus"),
        ("postgresql://app:secret@db/shop", "postgresql://app:…@db/shop"),
        ("postgresql://db/shop?password=x&schema=bus", "postgresql://db/shop?…&schema=bus"),
        ("postgresql://db/shop?password=x&sslpassword=y", "postgresql://db/shop?…"),
        ("postgresql://db/shop?schema=a(b", "postgresql://db/shop?…"),
        ("postgresql://db/a b", "postgresql://…"),
        ("postgresql://a b/shop", "postgresql://…"),
        ("sqlite:///bus\x00.db", "sqlite://…"),
        ("redis://app:secret@db", "redis://…"),
        ("no url at all", "…"),
        ("UPPER://db", "…"),
        (7, "…"),
    ],
)
def test_a_url_is_shown_as_far_as_it_is_known_to_be_harmless(url: object, shown: str) -> None:
    assert shown_url(url) == shown
