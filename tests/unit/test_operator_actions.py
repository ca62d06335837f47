"""The table of operator actions: every row names an operation and its parameters, and adding one takes
an operation and a row."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from typing import Any, get_type_hints

import msgspec
import pytest

from commandbus import operations
from commandbus.errors import InvalidArgumentError
from commandbus.interfaces.actions.answers import ANSWERS
from commandbus.interfaces.actions.carrying import call_of, call_of_many, params_of_many, resolve
from commandbus.interfaces.actions.model import Action, Kind, Param
from commandbus.interfaces.actions.table import ACTIONS
from commandbus.interfaces.web.bodies import body_of
from commandbus.operations.actions import record_action

BY_COMMAND = {action.cli: action for action in ACTIONS}

SAMPLES: dict[Kind, Any] = {
    Kind.TEXT: "orders",
    Kind.ID: "0190b1c0-0000-7000-8000-000000000001",
    Kind.DURATION: 60.0,
    Kind.MOMENT: None,
    Kind.DOCUMENT: {"n": 1},
    Kind.PRIORITY: 3,
    Kind.FLAG: True,
    Kind.INTEGER: 2,
    Kind.NUMBER: 2.0,
    Kind.WORDS: ["tag=x"],
    Kind.IDS: ["0190b1c0-0000-7000-8000-000000000001"],
}


def sample(param: Param) -> Any:
    return param.choices[0] if param.kind is Kind.CHOICE else SAMPLES[param.kind]


def accepted(operation: Any) -> set[str]:
    """The names that an operation takes, those of its typed keyword arguments included."""
    found: set[str] = set()
    for name, parameter in inspect.signature(operation).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            hints = get_type_hints(operation)[name]
            found |= set(hints.__args__[0].__annotations__) if hasattr(hints, "__args__") else set()
        found.add(name)
    return found


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.cli)
def test_a_row_names_an_operation_that_takes_its_parameters(action: Action) -> None:
    given = {p.name: sample(p) for p in (*action.subject.keys, *action.params)} | {"reason": "because"}
    call = call_of(action, given, preview=True)
    assert set(call.arguments) <= accepted(call.operation)
    assert action.answers in ANSWERS


@pytest.mark.parametrize(
    "action", [action for action in ACTIONS if action.many], ids=lambda action: action.cli
)
def test_the_operation_on_many_takes_the_conditions(action: Action) -> None:
    assert action.many is not None
    params = params_of_many(action.many, action)
    given = {p.name: sample(p) for p in params if p.name != "q"} | {"reason": "because"}
    call = call_of_many(action, given | {"q": "type:orders error:LATE"}, preview=True)
    assert set(call.arguments) <= accepted(call.operation)


def test_commands_and_addresses_are_unique() -> None:
    assert len({action.cli for action in ACTIONS}) == len(ACTIONS)
    assert len({action.path for action in ACTIONS}) == len(ACTIONS)


def test_every_operation_that_records_an_action_is_in_the_table() -> None:
    """Sends, new batches, starts of processes and programs' declarations have no row; promote moves two
    stores."""
    others = {"actions", "declaring", "sending", "promotion", "sign_ins"}
    others |= {"canceling._ask_to_stop", "schedules._put", "schedules._switch"}
    others |= {"batches._create", "processes._started", "processes._create_batch"}
    others |= {"erasure._erase_piece", "retention.prune_piece", "worker_requests._ask"}
    others |= {"batches._create", "processes._started", "processes._create_batch"}  # they send
    named = {action.operation for action in ACTIONS}
    for module in pkgutil.iter_modules(operations.__path__):
        source = importlib.import_module(f"commandbus.operations.{module.name}")
        for name, function in vars(source).items():
            own = inspect.isfunction(function) and function.__module__ == source.__name__
            if own and record_action.__name__ in function.__code__.co_names:
                place = f"{module.name}.{name}"
                assert {place, module.name} & (named | others), f"{place} needs a row of the table"


@pytest.mark.parametrize(
    ("command", "given", "complaint"),
    [
        ("process skip", {"process_id": "x"}, "needs a reason"),
        ("tsq assign", {"domain": "d", "command_id": "x"}, "needs assignee"),
        ("db erase", {"subject": ["account:42"], "reason": "r"}, "data.account=42"),
        ("db prune", {}, "Say what to forget"),
        ("db erase", {"subject": ["tag=a", "tag=b"], "reason": "r"}, "tag is given with two values"),
    ],
)
def test_what_is_missing_is_named(command: str, given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        call_of(BY_COMMAND[command], given)


@pytest.mark.parametrize(
    ("q", "complaint"),
    [
        ("status:failed", "only waiting ones"),
        ("data.pairs.value:x", "cannot choose"),
        ("x:1", "'x'"),
        ("tag:a tag:b", "two values"),
        ("data.a:1 data.a:2", "two values"),
        ("domain:other", "two values"),
    ],
)
def test_a_filter_that_cannot_choose_is_refused(q: str, complaint: str) -> None:
    action = BY_COMMAND["reschedule"]
    given = {"q": q, "delay": 1.0, "domain": "orders"}
    with pytest.raises(InvalidArgumentError, match=complaint):
        call_of_many(action, given, is_secret=lambda key: key == "password")


def test_a_secret_cannot_be_tried_by_the_preview_of_an_erasure() -> None:
    erase, given = BY_COMMAND["db erase"], {"subject": ["data.login.password=x"], "reason": "r"}
    secret = {"password"}.__contains__
    with pytest.raises(InvalidArgumentError, match="cannot be tried"):
        call_of(erase, given, preview=True, is_secret=secret)
    assert call_of(erase, given, is_secret=secret).arguments["data"] == {"login.password": "x"}


@pytest.mark.parametrize("action", [a for a in ACTIONS if a.confirm or a.many], ids=lambda a: a.name)
def test_a_misspelt_field_of_a_body_is_refused(action: Action) -> None:
    for many in {False, action.many is not None}:
        with pytest.raises(msgspec.ValidationError, match="unknown field"):
            msgspec.convert({"domian": "a"}, body_of(action, many=many))


def test_a_filter_chooses_the_status_of_what_is_sent_again() -> None:
    call = call_of_many(BY_COMMAND["resend"], {"q": "status:canceled domain:orders"})
    assert (call.arguments["status"], call.arguments["domain"]) == ("CANCELED", "orders")


def test_an_operation_in_several_transactions_is_distinguished_from_one() -> None:
    given = {"domain": "d", "batch_id": "x", "reason": "r"}
    assert call_of(BY_COMMAND["batch cancel"], given).is_flow
    assert not call_of(BY_COMMAND["queue pause"], {"domain": "d"}).is_flow
    assert resolve("queues.pause").__name__ == "pause"


ADDED = """
import asyncio, sys
from commandbus.interfaces.actions import table
from commandbus.interfaces.actions.model import Action, Kind, Param
from commandbus.operations import queues
from commandbus.operations.actions import record_action

def paint(scope, domain: str, colour: str, *, coats: int = 1, reason: str | None = None) -> "Op[int]":
    yield from record_action(scope, "paint", f"{domain} {colour} {coats}", reason)
    return coats

queues.paint = paint
table.ACTIONS += (
    Action(
        "paint", table.DOMAIN, "queue paint", "queues.paint", "Paint a domain.", "{domain} is {colour}",
        (Param("colour", "Its colour.", required=True, positional=True),
         Param("coats", "How many coats.", Kind.INTEGER, default="2")),
        exists="may",
    ),
)

import httpx
from typer.testing import CliRunner
from commandbus import CommandBus
from commandbus.interfaces.cli.app import app
from commandbus.interfaces.web import create_dashboard
from commandbus.sync import SyncCommandBus

url = sys.argv[1]
with SyncCommandBus(url) as bus:
    bus.send("orders", "ship")
runner = CliRunner()
assert "Paint a domain." in runner.invoke(app, ["queue", "--help"]).stdout
shown = runner.invoke(app, ["queue", "paint", "--help"]).stdout
for word in ("DOMAIN", "COLOUR", "--coats", "--reason", "--operator", "--dry-run", "--json"):
    assert word in shown, (word, shown)
as_ann = ["--operator", "ann", "--json", "--url", url]
done = runner.invoke(app, ["queue", "paint", "orders", "red", *as_ann])
assert '"done": "orders is red"' in done.stdout, done.output

async def over_http():
    async with CommandBus(url) as bus:
        site = create_dashboard(bus, open_to_this_machine=True)
        transport = httpx.ASGITransport(app=site)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            described = (await client.get("/api/v1/openapi.json")).json()
            operation = described["paths"]["/domains/{domain}/paint"]["post"]
            assert operation["summary"] == "Paint a domain."
            body = described["components"]["schemas"]["PaintDomain"]
            assert body["required"] == ["colour"]
            assert body["properties"]["coats"]["default"] == 2
            answer = await client.post("/api/v1/domains/orders/paint", json={"colour": "blue"})
            assert answer.json() == {"done": "orders is blue"}, answer.text
            page = (await client.get("/domains/orders")).text
            assert 'action="/domains/orders/paint"' in page
            assert 'name="colour"' in page
            token = page.split('name="form_token" value="')[1].split('"')[0]
            form = {"form_token": token, "colour": "green", "coats": "3", "reason": "spring"}
            told = await client.post("/domains/orders/paint", data=form)
            assert told.status_code == 303, told.text
            return [(a.actor, a.subject, a.reason) for a in await bus.list_actions(action="paint")]

assert asyncio.run(over_http()) == [
    ("local", "orders green 3", "spring"),
    ("local", "orders blue 2", None),
    ("ann", "orders red 2", None),
]
"""


def test_an_operation_and_a_row_add_an_action_everywhere(tmp_path: Any) -> None:
    """On the command line with its help, in the API and its document, and as a form."""
    done = subprocess.run(
        [sys.executable, "-c", ADDED, f"sqlite:///{tmp_path}/bus.db"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
