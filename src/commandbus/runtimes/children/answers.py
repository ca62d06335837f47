"""Requests of a child process, carried out by its worker for the command that the child runs."""

from __future__ import annotations

from typing import Any

import msgspec

from commandbus.domain import payload
from commandbus.errors import InvalidArgumentError
from commandbus.store.records import CommandFilter
from commandbus.worker.context import SyncHandlerContext
from commandbus.worker.isolation.crossing import pack
from commandbus.worker.isolation.messages import Answer, Ask, raw
from commandbus.worker.isolation.services import Sending, Sent

_decode = msgspec.msgpack.decode


def answer(context: SyncHandlerContext, ask: Ask) -> Answer:
    """Carry it out, and answer with its result or its error."""
    try:
        return Answer(ask.number, raw(_do(context, ask)))
    except msgspec.ValidationError as error:
        return Answer(
            ask.number, error=pack(InvalidArgumentError(f"An argument has a wrong type: {error}."))
        )
    except Exception as error:  # raised again in the child, where the handler can catch it
        return Answer(ask.number, error=pack(error))


def _do(context: SyncHandlerContext, ask: Ask) -> Any:
    claimed, services = context._claimed, context._services
    store, run = services.store, services.session.run
    match ask.method:
        case "renew":
            seconds = _decode(ask.arguments, type=float)
            return bool(run(store.renew([claimed.lease_id], seconds)))
        case "progress":
            percent, text = _decode(ask.arguments, type=tuple[float, str])
            return run(store.report_progress(claimed.seq, claimed.lease_id, percent, text))
        case "steps":
            return run(store.recorded_steps(claimed.seq), read=True)
        case "record":
            name, result = _decode(ask.arguments, type=tuple[str, str])
            return run(store.record_step(claimed.seq, claimed.lease_id, name, result))
        case "query":
            return run(store.query(_decode(ask.arguments, type=CommandFilter)), read=True)
        case "send":
            return _send(context, _decode(ask.arguments, type=Sending))
        case _:
            raise AssertionError(f"a child asked for {ask.method!r}")


def _send(context: SyncHandlerContext, sending: Sending) -> Sent:
    data, options = payload.decode(sending.data), sending.options()
    sent = context.send(sending.domain, sending.command_type, data, **options)
    return Sent(sent.command_id, sent.domain, sent.duplicate)
