"""Hidden values stay hidden: in errors, in searches, and while a payload is edited."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncIterator
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel, field_validator

from commandbus import Command, CommandBus, HandlerRegistry, PermanentCommandError, Worker
from commandbus.domain.misfit import describe_misfit
from commandbus.interfaces.redaction import MASK, Redaction
from commandbus.interfaces.web.openapi import PREFIX
from commandbus.sync import SyncCommandBus
from tests.web import scene
from tests.web.visitor import visitor

SECRET = "hunter2-hunter2"


class Kind(Enum):
    CARD = "card"


class PydanticLogin(BaseModel):
    user: str
    password: str


class PydanticChecked(BaseModel):
    password: str

    @field_validator("password")
    @classmethod
    def check(cls, value: str) -> str:
        raise ValueError(f"{value} is too short")


class StructLogin(msgspec.Struct):
    user: str
    password: Kind


class CheckedStruct(msgspec.Struct):
    password: str

    def __post_init__(self) -> None:
        raise ValueError(f"{self.password} is too short")


class OddStruct(msgspec.Struct):
    password: str

    def __post_init__(self) -> None:
        raise KeyError(self.password)


@dataclasses.dataclass
class Checked:
    password: str

    def __post_init__(self) -> None:
        raise ValueError(f"{self.password} is too short")


TYPES = [PydanticLogin, PydanticChecked, StructLogin, CheckedStruct, OddStruct, Checked]


def registry_of(payload_type: Any) -> HandlerRegistry:
    registry = HandlerRegistry()

    async def log_in(command: Any, context: Any) -> None:
        return None

    log_in.__annotations__["command"] = Command[payload_type]
    registry.register("users", "log_in", log_in)
    return registry


@pytest.mark.parametrize("payload_type", TYPES)
async def test_the_bus_writes_no_value_of_a_payload_into_an_error(
    payload_type: Any, caplog: pytest.LogCaptureFixture
) -> None:
    registry = registry_of(payload_type)
    with caplog.at_level(logging.DEBUG):
        async with CommandBus("memory://") as bus:
            sent = await bus.send("users", "log_in", {"password": SECRET})
            await scene.work(bus, ("users",), registry)
            record = await bus.get_command(sent.command_id)
            trail = await bus.get_audit_trail(sent.command_id)
            assert record is not None
            assert record.error is not None
            assert record.error.code == "UNDECODABLE"
            kept = msgspec.json.encode([record.error, trail]).decode()
            assert SECRET not in kept
            report = await bus.check_payloads(registry)
            assert report.misfits
            assert SECRET not in str(report)
            worker = Worker(bus, ["users"], registry)
            await bus.send("users", "log_in", {"password": SECRET})
            assert await worker.receive(batch_size=1)
    assert SECRET not in caplog.text


@pytest.mark.parametrize("payload_type", TYPES)
def test_a_refused_payload_is_not_quoted_by_a_cause(payload_type: Any) -> None:
    with pytest.raises(Exception, match="does not fit") as refused:
        registry_of(payload_type).check_payload("users", "log_in", f'{{"password": "{SECRET}"}}')
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


def test_a_misfit_is_described_by_path_and_kind() -> None:
    with pytest.raises(ValueError, match="validation errors") as wrong:
        PydanticLogin.model_validate_json('{"password": ["x"]}')
    assert describe_misfit(wrong.value) == "missing at $.user; string_type at $.password"
    with pytest.raises(msgspec.ValidationError) as invalid:
        msgspec.json.decode(f'{{"user": "a", "password": "{SECRET}"}}', type=StructLogin)
    assert describe_misfit(invalid.value) == "Invalid enum value at $.password"


@pytest.fixture
async def bus() -> AsyncIterator[CommandBus]:
    async with CommandBus("memory://") as opened:
        yield opened


async def park(bus: CommandBus, data: Any) -> str:
    """The API's address of a parked command with this payload."""
    sent = await bus.send("users", "log_in", data)
    worker = Worker(bus, ["users"], HandlerRegistry())
    (received,) = await worker.receive(batch_size=1)
    await worker.fail(received, PermanentCommandError("NO", "no"))
    return f"{PREFIX}/commands/users/{sent.command_id}"


async def data_of(bus: CommandBus, place: str) -> Any:
    record = await bus.get_command(UUID(place.rpartition("/")[2]))
    assert record is not None
    return record.data


@pytest.mark.parametrize("payload_type", TYPES)
async def test_a_retry_with_the_mask_and_a_field_left_out_does_not_tell_the_value(
    bus: CommandBus, payload_type: Any
) -> None:
    place = await park(bus, {"user": "ana", "password": SECRET})
    async with visitor(bus, registry=registry_of(payload_type)) as client:
        answer = await client.post(f"{place}/retry", json={"data": {"password": MASK}})
        assert answer.status_code == 422
        assert SECRET not in answer.text


@pytest.mark.parametrize(
    ("data", "edited"),
    [
        # Moved to a key that is shown.
        ({"note": "n", "password": SECRET}, {"note": MASK, "password": MASK}),
        ({"password": SECRET}, {"other": MASK}),
        ({"password": SECRET}, MASK),
        ({"password": SECRET}, [MASK]),
        # To a key that hides another value, or none.
        ({"password": SECRET}, {"token": MASK}),
        ({"password": SECRET, "token": None}, {"password": MASK, "token": MASK}),
        # Another order, or fewer.
        (
            [{"user": "alice", "token": SECRET}, {"user": "bob", "token": "b"}],
            [{"user": "bob", "token": MASK}, {"user": "alice", "token": MASK}],
        ),
        ([{"token": "a"}, {"token": SECRET}], [{"token": MASK}]),
        ([{"token": "a"}], [{"token": MASK}, {"token": MASK}]),
        # A pair that gets another name.
        ({"name": "password", "value": SECRET}, {"name": "colour", "value": MASK}),
        ({"Key": "password", "Value": SECRET}, {"Key": "colour", "Value": MASK}),
        ([["password", SECRET]], [["colour", MASK]]),
        ({"pair": ["password", SECRET]}, {"pair": ["colour", MASK]}),
        (["password", SECRET], ["colour", MASK]),
        # Within text.
        ({"body": '{"password": "x"}'}, {"body": f'{{"user": "eve", "password": "{MASK}"}}'}),
        ({"body": "nothing"}, {"body": f"a {MASK}"}),
    ],
)
async def test_a_mask_that_was_moved_or_left_over_is_refused(
    bus: CommandBus, data: Any, edited: Any
) -> None:
    place = await park(bus, data)
    async with visitor(bus) as client:
        answer = await client.post(f"{place}/retry", json={"data": edited})
        assert answer.status_code == 422, answer.text
        assert "hidden value" in answer.json()["message"]
        assert SECRET not in answer.text
    assert await data_of(bus, place) == data


@pytest.mark.parametrize(
    ("data", "edited", "kept"),
    [
        (
            {"user": "a", "password": SECRET},
            {"user": "b", "password": MASK},
            {"user": "b", "password": SECRET},
        ),
        ({"password": SECRET}, {"password": "new"}, {"password": "new"}),
        ({"password": SECRET, "n": 1}, {"n": 2}, {"n": 2}),
        (
            [{"user": "a", "token": "t"}, {"n": 1}],
            [{"user": "a", "token": MASK}, {"n": 2}],
            [{"user": "a", "token": "t"}, {"n": 2}],
        ),
        (
            [{"user": "a", "token": "t"}],
            [{"user": "b", "token": "new"}],
            [{"user": "b", "token": "new"}],
        ),
        ({"note": MASK, "n": 1}, {"note": MASK, "n": 2}, {"note": MASK, "n": 2}),
        (
            {"body": '{"pin": 1}', "n": 1},
            {"body": f'{{"pin":"{MASK}"}}', "n": 2},
            {"body": '{"pin": 1}', "n": 2},
        ),
        (
            {"headers": [{"name": "Cookie", "value": SECRET}], "n": 1},
            {"headers": [{"name": "Cookie", "value": MASK}], "n": 2},
            {"headers": [{"name": "Cookie", "value": SECRET}], "n": 2},
        ),
    ],
)
async def test_a_mask_that_stays_in_its_place_means_what_it_hides(
    bus: CommandBus, data: Any, edited: Any, kept: Any
) -> None:
    place = await park(bus, data)
    async with visitor(bus) as client:
        answer = await client.post(f"{place}/retry", json={"data": edited})
        assert answer.status_code == 200, answer.text
    assert await data_of(bus, place) == kept


@pytest.mark.parametrize(
    "key",
    ["pwd", "userPwd", "passphrase", "pin", "card_pin", "cardPIN", "pan", "cvc", "CVV2", "cookie",
     "Set-Cookie", "access_key", "AWSAccessKey", "credentials", "client_secret", "otp", "jwt",
     "session_id", "signing-key", "connection_string", "api.key", "card:number", "app/private/key",
     "access\u00a0key"],
)  # fmt: skip
def test_what_names_a_secret_is_hidden(key: str) -> None:
    assert Redaction().hide({key: SECRET}) == {key: MASK}


@pytest.mark.parametrize("key", ["shipping", "company", "opinion", "panel", "author", "passenger"])
def test_words_that_only_contain_the_letters_are_shown(key: str) -> None:
    assert Redaction().hide({key: "shown"}) == {key: "shown"}


@pytest.mark.parametrize(
    "data",
    [
        {"name": "password", "value": SECRET},
        {"headers": [{"key": "Authorization", "value": SECRET}]},
        {"tags": [{"Key": "Password", "Value": {"inner": SECRET}}]},
        ["password", SECRET],
        {"pairs": [["api_key", SECRET]]},
        {"body": f'{{"login": {{"password": "{SECRET}"}}}}'},
        {"body": f'[{{"token": "{SECRET}"}}]'},
        {"body": f'"{{\\"token\\": \\"{SECRET}\\"}}"'},
        {"outer": f'{{"body": "{{\\"token\\": \\"{SECRET}\\"}}"}}'},
    ],
)
def test_pairs_and_documents_within_text_are_hidden(data: Any) -> None:
    assert SECRET not in str(Redaction().hide(data))


async def test_unique_keys_and_tags_that_name_a_secret_are_hidden(bus: CommandBus) -> None:
    sent = await bus.send(
        "users", "log_in", {}, unique_key=f"token:{SECRET}", tags=[f"pin={SECRET}", "vip"]
    )
    async with visitor(bus) as client:
        for path in (f"{PREFIX}/commands", f"{PREFIX}/commands/users/{sent.command_id}", "/commands",
                     f"/commands/users/{sent.command_id}"):  # fmt: skip
            told = (await client.get(path)).text
            assert SECRET not in told, path
        assert "vip" in told
        searched = await client.get(f"{PREFIX}/commands", params={"q": f"tag:pin={SECRET}"})
        assert searched.status_code == 422


async def test_redact_adds_to_the_defaults(bus: CommandBus) -> None:
    await bus.send("users", "log_in", {"shoe_size": 43, "password": SECRET})
    async with visitor(bus, redact=["shoe size"]) as client:
        told = (await client.get(f"{PREFIX}/commands")).json()["commands"][0]["data"]
        assert told == {"shoe_size": MASK, "password": MASK}


STORES = ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.mark.parametrize("store", STORES)
async def test_a_search_does_not_confirm_a_hidden_value(store: str, tmp_path: Any) -> None:
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/bus.db"}.get(store)
    if url is None:
        from tests.postgres.database import postgres_configuration

        url = postgres_configuration().url
    login = {"user": "bob", "password": "hunter2"}
    data = {
        "login": login,
        "header": {"name": "Cookie", "value": "hunter2"},
        "pairs": [["pin", "1234"]],
        "tag": {"Key": "token", "Value": {"inner": "hunter2"}},
        "body": '{"pin":"1234"}',
        "twice": '"{\\"pin\\":1234}"',
        "amount": {"value": 42},
    }
    async with CommandBus(url, migrate=True) as bus:
        await bus.send("users", "log_in", data)
        async with visitor(bus) as client:

            async def found(word: str) -> Any:
                answer = await client.get(f"{PREFIX}/commands", params={"q": word, "limit": 1})
                return answer.json() | {"status": answer.status_code}

            for right, wrong in (
                ('data.login:\'{"user":"bob","password":"hunter2"}\'', "data.login:'{}'"),
                ('data.login:\'{"user": "bob", "password": "hunter2"}\'', "data.login:'{}'"),
                ("data.header.value:hunter2", "data.header.value:hunter3"),
                ("data.pairs.0.1:1234", "data.pairs.0.1:1235"),
                ("data.tag.Value.inner:hunter2", "data.tag.Value.inner:hunter3"),
                ('data.body:\'{"pin":"1234"}\'', 'data.body:\'{"pin":"1235"}\''),
                # Backslashes outside of quotes, and all else within them.
                (
                    """data.twice:'"{'\\'"pin'\\'":1234}"'""",
                    """data.twice:'"{'\\'"pin'\\'":1235}"'""",
                ),
            ):
                assert await found(right) == await found(wrong), right
            assert len((await found("data.amount.value:42"))["commands"]) == 1
            assert len((await found("data.login.user:bob"))["commands"]) == 1


def test_the_command_line_checks_without_quoting(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/bus.db"
    with SyncCommandBus(url) as bus:
        bus.send("users", "log_in", {"password": SECRET})
        assert SECRET not in str(bus.check_payloads(registry_of(PydanticLogin)))


async def test_a_shown_payload_is_not_sent_with_its_masks(bus: CommandBus) -> None:
    place = await park(bus, {"password": SECRET})
    async with visitor(bus) as client:
        copied = {"domain": "users", "command_type": "log_in", "data": {"password": MASK}}
        assert (await client.post(f"{PREFIX}/commands", json=copied)).status_code == 422
        done = await client.post(f"{place}/complete", json={"result": {"token": MASK}})
        assert done.status_code == 422
