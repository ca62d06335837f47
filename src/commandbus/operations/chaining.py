"""Chains: several commands, each sent when the one before has completed, begun by one call."""

from __future__ import annotations

from uuid import UUID

from commandbus.domain import payload
from commandbus.domain.command import SendRequest
from commandbus.domain.names import as_text
from commandbus.domain.process.chain import LINKS_MAX, Chain, ChainState, as_link
from commandbus.errors import InvalidArgumentError
from commandbus.operations.commands import encode_request
from commandbus.operations.processes import ProcessStart, StartProcessResult, start_processes
from commandbus.operations.scope import Scope
from commandbus.store.op import Op


def chain(
    scope: Scope,
    *requests: SendRequest,
    result_as: str | None = None,
    process_id: UUID | str | None = None,
) -> Op[StartProcessResult]:
    """Send commands one after another, each when the one before has completed; returns the process
    that does so. It is durable, and a worker drives it on whose registry has the process
    `Chain`: `registry.process(Chain)`.

    With `result_as`, each command but the first gets the result of the one before in that field of its
    payload. The chain ends FAILED with the first command that fails or is canceled, and waits while
    one is parked. `process_id` makes a repeated call safe: the second one raises
    DuplicateProcessError. Raises InvalidArgumentError, PayloadError.
    """
    if not 1 <= len(requests) <= LINKS_MAX:
        raise InvalidArgumentError(f"A chain has 1 to {LINKS_MAX} commands, not {len(requests)}.")
    if result_as is not None:
        as_text(result_as, "result_as")
    links = []
    for number, request in enumerate(requests):
        encoded = encode_request(scope, request)
        link = as_link(request, payload.decode(encoded.data))
        if number and result_as is not None and not isinstance(link.data, dict | None):
            raise InvalidArgumentError(
                f"result_as={result_as!r} needs payloads that are objects, and that of "
                f"{link.command_type!r} is {link.data!r}."
            )
        links.append(link)
    start = ProcessStart(ChainState(links, result_as=result_as), process_id)
    return _first(start_processes(scope, Chain, [start]))


def _first(op: Op[list[StartProcessResult]]) -> Op[StartProcessResult]:
    return (yield from op)[0]
