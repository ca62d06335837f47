"""Handlers with Django's ORM: connections that are fresh, and effects that commit with the outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

from commandbus.domain.command import Command
from commandbus.worker.handlers import Handler

Function = Callable[[Command[Any], Any], Any]


def with_orm(handler: Handler, alias: str | None) -> Handler:
    """A handler of a registry as a Django worker runs it. A transactional one works in the transaction
    of Django's own connection to the database of the bus, so that its ORM is part of it."""
    if handler.isolated is not None:
        return handler
    if handler.transactional and alias is not None:
        if handler.is_async:
            raise ImproperlyConfigured(
                f"The handler of {handler.domain}.{handler.command_type} is `async def` and "
                "transactional; Django's transactions need a `def` handler."
            )
        function = committed_with(handler.function, alias)
        return replace(handler, function=fresh_connections(function), transactional=False)
    return (
        handler if handler.is_async else replace(handler, function=fresh_connections(handler.function))
    )


def fresh_connections(function: Function) -> Function:
    """Let go of connections that are too old or broken, before and after: as Django does around each
    request."""

    @wraps(function)
    def run(command: Command[Any], context: Any) -> Any:
        _close_old_connections()
        try:
            return function(command, context)
        finally:
            _close_old_connections()

    return run


def _close_old_connections() -> None:
    """Django's, except that a connection stays whose transaction is open: that of a test."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def committed_with(function: Function, alias: str) -> Function:
    """Effects, follow-ups and outcome commit together, in a transaction of Django's connection."""

    @wraps(function)
    def run(command: Command[Any], context: Any) -> Any:
        with transaction.Atomic(alias, savepoint=True, durable=False):
            result = function(command, context)
            context.complete(result, within=connections[alias])
        return result

    return run
