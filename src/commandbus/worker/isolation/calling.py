"""A handler in a child process, as the worker's slot calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from commandbus.domain import payload
from commandbus.worker.context import SyncHandlerContext
from commandbus.worker.isolation.options import Isolated
from commandbus.worker.isolation.verdicts import Encoded


class Children(Protocol):
    """Runs handlers in child processes."""

    def call(
        self, isolated: Isolated, context: SyncHandlerContext, timeout: float | None
    ) -> Encoded: ...


def in_child(children: Children, handler: Any, decoded: bool) -> Callable[[Any, Any], Any]:
    """A `def` handler that waits for the child. With `decoded` its result is that of the function, for
    middleware; else it stays as the child has encoded it."""
    isolated, contract = handler.isolated, handler.contract

    def run(command: Any, context: SyncHandlerContext) -> Any:
        result = children.call(isolated, context, context._timeout)
        if not decoded:
            return result
        plain = None if result.text is None else payload.decode(result.text)
        return plain if contract is None else contract.decode_result(plain)

    return run
