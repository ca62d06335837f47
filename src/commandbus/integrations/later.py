"""Sends that follow a commit: the request is checked, and its id known, before."""

from __future__ import annotations

from typing import TypeVar

from commandbus.domain.command import SendRequest, SendResult, TypedRequest
from commandbus.domain.ids import new_id
from commandbus.operations.scope import Scope
from commandbus.operations.sending import encode_request

R = TypeVar("R")


def prepared(scope: Scope, request: SendRequest[R]) -> tuple[SendRequest[R], SendResult[R]]:
    """The request with an id, and what its send will return. Raises what the send would raise about
    the request."""
    if request.command_id is None and request.idempotency_key is None:
        request = request.options(command_id=new_id())
    command_id = encode_request(scope, request).command_id
    contract = request.contract if isinstance(request, TypedRequest) else None
    return request, SendResult(command_id, request.domain, contract=contract)
