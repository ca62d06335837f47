"""Processes that no router can carry on: damaged ones, and those whose declaration is gone."""

from __future__ import annotations

import pytest

from commandbus.errors import InvalidOperationError
from commandbus.testing.conformance.process_operators import damage
from commandbus.testing.harness import Harness
from commandbus.testing.sagas import Leg, Sagas, Timed, Tour, Trip


class ProcessEndsSuite:
    @pytest.mark.parametrize("part", ["state", "progress", "error", "declaration"])
    def test_an_operator_ends_a_process_that_no_router_can_carry_on(
        self, bus: Harness, part: str
    ) -> None:
        sagas = Sagas(bus, Timed)
        opened = bus.call(sagas.manager.create_batch, [Trip()])
        (bad,) = opened.process_ids
        sagas.end("hotel", None)
        sagas.route()
        if part == "declaration":
            sagas.declarations = {"another": Timed}
        else:
            bus.run(damage(bus, bad, part))
        bus.call(bus.bus.cancel_process, bad, "called off")
        sagas.route()
        assert sagas.get(bad).finished_at is None
        ended = bus.call(bus.bus.acting("ann").end_process, bad, "restored by hand")
        record = sagas.get(bad)
        assert (record.status, record.error and record.error.code) == ("FAILED", "ENDED_BY_OPERATOR")
        assert "hotel" in str(ended.not_done) or "nothing was undone" in str(ended.not_done)
        assert any(event.startswith("FAILED") for event in sagas.happened(bad))
        assert sagas.waiting() == ([] if part != "progress" else ["car"])
        assert bus.stats(Timed.reply_to).parked == 0
        assert bus.call(bus.bus.list_actions).items[0].action == "end_process"
        with pytest.raises(InvalidOperationError, match="final"):
            bus.call(bus.bus.end_process, bad, "again")
        if part == "progress":
            sagas.end("car", None)
        bus.advance(3600)
        sagas.route()
        assert bus.stats(Timed.reply_to).depth == 0, "what comes late is ignored"
        assert bus.call(bus.bus.get_batch, opened.batch_id).failed == 1

    def test_a_step_that_may_have_taken_effect_is_named(self, bus: Harness) -> None:
        sagas = Sagas(bus, Timed)
        process_id = sagas.start()
        sagas.pass_time(11)
        bus.run(damage(bus, process_id, "state"))
        ended = bus.call(bus.bus.end_process, process_id, "restored by hand")
        assert "may have taken effect were not undone: hotel" in str(ended.not_done)

    def test_the_parent_of_a_process_that_was_ended_is_told(self, bus: Harness) -> None:
        sagas = Sagas(bus, Tour, Leg)
        above = sagas.start()
        sagas.done("plan")
        child = sagas.get(above).steps[-1].command_id
        bus.run(damage(bus, child, "progress"))
        bus.call(bus.bus.end_process, child, "lost")
        sagas.route()
        error = sagas.get(above).error
        assert error is not None
        assert error.code == "ENDED_BY_OPERATOR"
        assert "unplan" in sagas.waiting()
