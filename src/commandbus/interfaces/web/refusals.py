"""Requests that are not served."""

from __future__ import annotations

CHALLENGE = 'Bearer realm="Command Bus"'
"""Sent with a 401. It names no scheme for which browsers would open a dialogue."""


class Refused(Exception):  # noqa: N818 - an answer, not a mistake
    """The request is not served: 401 without an identity, 403 without permission, 429 too often."""

    def __init__(self, status: int, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after
