"""Chains: several commands, each sent when the one before has completed, begun by one call."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from commandbus.domain import payload
from commandbus.domain.command import SendRequest, TypedRequest
from commandbus.domain.contract import CommandType
from commandbus.domain.names import as_text
from commandbus.domain.process.chain import LINKS_MAX, Chain, ChainState, as_link
from commandbus.errors import InvalidArgumentError
from commandbus.operations.processes import ProcessStart, StartProcessResult, start_processes
from commandbus.operations.scope import Scope
from commandbus.operations.sending import encode_request
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
        if number and result_as is not None and isinstance(request, TypedRequest):
            _check_field(request.contract, result_as, link.data)
        links.append(link)
    start = ProcessStart(ChainState(links, result_as=result_as), process_id)
    return _first(start_processes(scope, Chain, [start]))


def _check_field(contract: CommandType[..., Any], result_as: str, data: Any) -> None:
    """Raise InvalidArgumentError when a typed command cannot take a result in this field."""
    if contract.__signature__ is None:
        return
    names, fields = list(contract.__signature__.parameters), data or {}
    is_model = len(names) == 1 and names[0] not in fields  # then its fields are not known here
    if not is_model and result_as not in names and result_as not in fields:
        raise InvalidArgumentError(
            f"result_as={result_as!r} is no parameter of {contract}, which gets the result of the "
            f"command before it; its parameters: {', '.join(names) or 'none'}."
        )


def _first(op: Op[list[StartProcessResult]]) -> Op[StartProcessResult]:
    return (yield from op)[0]
