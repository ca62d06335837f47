"""Sends inside the caller's own transaction: they exist when, and only when, it commits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from commandbus.domain.command import SendRequest
from commandbus.domain.lifecycle import CommandStatus
from commandbus.errors import ConfigurationError, DuplicateCommandError
from commandbus.testing.conformance.helpers import registry_of, require
from commandbus.testing.handlers import Recorder
from commandbus.testing.harness import CallerTransaction, Harness


@contextmanager
def transaction(bus: Harness) -> Iterator[CallerTransaction]:
    """A transaction of the caller's, on an engine that can share it."""
    require(bus, "caller_transactions")
    assert bus.configuration.begin is not None, "the configuration does not say how to begin one"
    with bus.configuration.begin(bus) as begun:
        yield begun


class TransactionsSuite:
    def test_a_committed_send_exists(self, bus: Harness) -> None:
        with transaction(bus) as mine:
            within = bus.bus.within(mine.connection)
            sent = bus.call(within.send, "orders", "ship", {"n": 1})
            mine.commit()
        assert bus.get(sent.command_id).data == {"n": 1}
        assert bus.take(bus.worker()).command.command_id == sent.command_id

    def test_a_rolled_back_send_never_was(self, bus: Harness) -> None:
        with transaction(bus) as mine:
            within = bus.bus.within(mine.connection)
            sent = bus.call(within.send, "orders", "ship", unique_key="k")
            mine.rollback()
        assert bus.find(sent.command_id) is None
        assert bus.receive(bus.worker()) == []
        assert not bus.send_result("orders", "ship", unique_key="k").duplicate

    def test_an_open_transaction_is_seen_by_itself_alone(self, bus: Harness) -> None:
        with transaction(bus) as mine:
            within = bus.bus.within(mine.connection)
            sent = bus.call(within.send, "orders", "ship")
            inside = bus.call(within.get_command, sent.command_id)
            assert inside is not None
            assert inside.status is CommandStatus.PENDING
            assert bus.find(sent.command_id) is None
            mine.commit()
        assert bus.find(sent.command_id) is not None

    def test_a_bulk_send_commits_whole(self, bus: Harness) -> None:
        with transaction(bus) as mine:
            within = bus.bus.within(mine.connection)
            bus.call(within.send_many, [SendRequest("orders", "ship", n) for n in range(10)])
            mine.commit()
        assert bus.stats().ready == 10

    def test_a_cancellation_commits_with_the_caller(self, bus: Harness) -> None:
        kept, ended = bus.send(), bus.send()
        for command_id, commit in ((kept, False), (ended, True)):
            with transaction(bus) as mine:
                within = bus.bus.within(mine.connection)
                bus.call(within.cancel, command_id)
                mine.commit() if commit else mine.rollback()
        assert bus.get(kept).status is CommandStatus.PENDING
        assert bus.get(ended).status is CommandStatus.CANCELED

    def test_a_duplicate_is_refused_inside_too(self, bus: Harness) -> None:
        known = bus.send()
        with transaction(bus) as mine:
            within = bus.bus.within(mine.connection)
            with pytest.raises(DuplicateCommandError):
                bus.call(within.send, "orders", "ship", command_id=known)
            mine.rollback()
        assert bus.stats().depth == 1

    def test_a_commit_wakes_an_idle_worker(self, bus: Harness) -> None:
        require(bus, "caller_transactions")
        with bus.run_worker(registry_of(ship=Recorder())) as running:
            running.wait_until_idle()
            with transaction(bus) as mine:
                within = bus.bus.within(mine.connection)
                sent = bus.call(within.send, "orders", "ship")
                mine.commit()
            assert bus.wait(sent.command_id).status is CommandStatus.COMPLETED
            assert "fallback" not in running.metrics.wakeups

    def test_a_connection_of_another_kind_is_refused(self, bus: Harness) -> None:
        with pytest.raises(ConfigurationError):
            bus.bus.within(object())

    def test_engines_without_transactions_say_so(self, bus: Harness) -> None:
        if bus.capabilities.caller_transactions:
            with pytest.raises(ConfigurationError, match="within"):
                bus.bus.within(None)
        else:
            with pytest.raises(ConfigurationError, match="no transactions that a caller could share"):
                bus.bus.within(None)
