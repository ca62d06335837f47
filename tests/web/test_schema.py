"""schemathesis reads the OpenAPI document and asks for everything it allows, and for much it does not:
no request makes the API stumble, and every answer is one that the document describes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from commandbus import CommandBus
from commandbus.interfaces.web.endpoints import ENDPOINTS
from commandbus.interfaces.web.openapi import PREFIX
from tests.fuzz.fuzzing import EXAMPLES, SEED
from tests.web import saga, scene
from tests.web.people import AS_OTTO, OTTO
from tests.web.server import Served, served

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


class Site:
    """A dashboard with data, its document, and the parts of paths that lead somewhere."""

    def __init__(self, place: Served) -> None:
        self.document = schemathesis.openapi.from_url(
            f"{place.url}{PREFIX}/openapi.json", headers=AS_OTTO
        )
        self.document.config.generation.modes = list(GenerationMode)
        commands = place.run(place.bus.query_commands(limit=50))
        batch = place.run(place.bus.list_batches(domain="orders"))[0]
        process = place.run(place.bus.list_processes())[0]
        self.known: dict[str, list[Any]] = {
            "domain": ["orders", "payments", "mail"],
            "command_id": [str(command.command_id) for command in commands],
            "batch_id": [str(batch.batch_id)],
            "process_id": [str(process.process_id)],
            "name": ["nightly-report", "remind", "stock"],
            "target": ["bank", "warehouse"],
        }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    async def fill(bus: CommandBus) -> None:
        await scene.fill(bus)
        await saga.drive(bus)

    folder = tmp_path_factory.mktemp("schema")
    store = f"sqlite:///{folder}/bus.db?synchronous=off"
    with served(store, fill, accounts=[OTTO], registry=scene.registry) as place:
        yield Site(place)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
def test_every_answer_is_described(site: Site, endpoint: Any) -> None:
    operation = site.document[endpoint.path][endpoint.method]

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES // 2,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(st.data())
    def check_answers(data: st.DataObject) -> None:
        case = data.draw(
            operation.as_strategy(generation_mode=data.draw(st.sampled_from(GenerationMode)))
        )
        if data.draw(st.booleans()):
            for name in case.path_parameters:
                case.path_parameters[name] = data.draw(st.sampled_from(site.known[name]))
        case.call_and_validate(headers=AS_OTTO, checks=CHECKS)

    check_answers()
