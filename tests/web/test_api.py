"""The API does what its document says, and nothing that is sent to it makes it stumble."""

from __future__ import annotations

import json
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from commandbus import CommandBus
from commandbus.interfaces.redaction import MASK
from commandbus.interfaces.web import create_dashboard
from commandbus.interfaces.web.openapi import PREFIX, document
from tests.support import extent
from tests.web import scene


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{tmp_path}/bus.db?synchronous=off"
        case _:
            from tests.postgres.database import postgres_configuration

            return postgres_configuration().url


@pytest.fixture
async def bus(store: str) -> AsyncIterator[CommandBus]:
    async with CommandBus(store, migrate=True) as opened:
        await scene.fill(opened)
        await scene.present(opened)
        yield opened


@pytest.fixture
async def api(bus: CommandBus) -> AsyncIterator[httpx.AsyncClient]:
    app = create_dashboard(bus, open_to_this_machine=True, registry=scene.registry)
    base = f"http://localhost{PREFIX}"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=base) as client:
        yield client


async def test_a_payload_that_was_left_as_it_is_was_not_edited(
    bus: CommandBus, api: httpx.AsyncClient
) -> None:
    one = (await api.get("/troubleshooting?domain=orders")).json()["commands"][0]
    place = f"/commands/{one['domain']}/{one['command_id']}"
    assert (await api.post(f"{place}/retry", json={"data": one["data"]})).status_code == 200
    (retried,) = (
        e for e in (await api.get(place)).json()["trail"] if e["event_type"] == "OPERATOR_RETRY"
    )
    assert "edited_data" not in retried["details"]


async def test_comments_and_assignments(bus: CommandBus, api: httpx.AsyncClient) -> None:
    one = (await api.get("/troubleshooting")).json()["commands"][0]
    place = f"/commands/{one['domain']}/{one['command_id']}"
    assert (await api.post(f"{place}/comment", json={"text": "<b>asked</b>"})).status_code == 200
    assert (await api.post(f"{place}/assign", json={"assignee": "ben"})).status_code == 200
    assert (await api.post(f"{place}/comment", json={"text": ""})).status_code == 422
    trouble = (await api.get("/troubleshooting")).json()
    case = trouble["cases"][[c["command_id"] for c in trouble["commands"]].index(one["command_id"])]
    assert (case["assignee"], case["comment"], case["comments"]) == ("ben", "<b>asked</b>", 1)
    assert (await api.get(place)).json()["case"] == case
    for page in (place, "/troubleshooting"):
        shown = (await api.get(f"http://localhost{page}")).text
        assert "&lt;b&gt;asked&lt;/b&gt;" in shown
        assert "ben" in shown
    assert (await api.post(f"{place}/assign", json={})).status_code == 422
    assert (await api.post(f"{place}/unassign", json={})).json() == {"done": "unassigned"}


async def test_reads_and_actions(bus: CommandBus, api: httpx.AsyncClient) -> None:
    overview = (await api.get("/overview")).json()
    assert {d["domain"]: d["health"] for d in overview["domains"]} == {
        "mail": "paused",
        "orders": "warning",
        "payments": "warning",
    }
    assert any("wait for an operator" in item["text"] for item in overview["attention"])
    parked = (await api.get("/commands", params={"q": "status:parked domain:orders"})).json()
    assert {c["status"] for c in parked["commands"]} == {"IN_TROUBLESHOOTING_QUEUE"}
    assert {c["data"]["city"] for c in parked["commands"]} == {"Atlantis"}
    by_error = (await api.get("/commands", params={"q": "error:BANK_TIMEOUT"})).json()["commands"]
    by_name = {"q": "error:TransientCommandError"}
    assert by_error == (await api.get("/commands", params=by_name)).json()["commands"] != []
    by_data = (await api.get("/commands", params={"q": "data.account:34 domain:payments"})).json()
    assert [c["data"]["account"] for c in by_data["commands"]] == [34]
    tagged = (await api.get("/commands", params={"q": "tag:express data.express:true"})).json()
    assert tagged["commands"]
    assert all(c["data"]["express"] for c in tagged["commands"])

    one = parked["commands"][0]
    place = f"/commands/{one['domain']}/{one['command_id']}"
    assert (await api.get(place)).json()["why"]["reasons"][0]["code"] == "PARKED"
    wrong = await api.post(f"{place}/retry", json={"data": {"order": "x", "city": 5}})
    assert wrong.status_code == 422
    assert "Shipment" in wrong.json()["message"]
    edited = one["data"] | {"city": "Oslo"}
    assert (await api.post(f"{place}/retry", json={"data": edited})).status_code == 200
    assert (await api.post(f"{place}/retry", json={})).status_code == 409
    await scene.work(bus, ("orders",))
    detail = (await api.get(place)).json()
    assert detail["command"]["status"] == "COMPLETED"
    kinds = [event["event_type"] for event in detail["trail"]]
    assert "OPERATOR_RETRY" in kinds
    assert detail["trail"][kinds.index("OPERATOR_RETRY")]["details"]["edited_data"] == edited
    found = (await api.get("/audit", params={"event": "OPERATOR_RETRY", "actor": "local"})).json()
    assert [e["event"]["command_id"] for e in found["events"]] == [one["command_id"]]

    groups = (await api.get("/troubleshooting/groups", params={"domain": "orders"})).json()
    group = groups["groups"][0]
    body = {"group": group["fingerprint"]}
    preview = (await api.post("/commands/retry", json=body | {"preview": True})).json()
    assert (preview["matched"], preview["done"], preview["preview"]) == (group["count"], 0, True)
    assert (await api.post("/commands/retry", json=body)).status_code == 422
    assert (await api.post("/commands/retry", json={"reason": "all"})).status_code == 422
    done = (await api.post("/commands/retry", json=body | {"reason": "mended"})).json()
    assert done["done"] == group["count"]


async def test_sending_and_pausing(bus: CommandBus, api: httpx.AsyncClient) -> None:
    sent = await api.post("/commands", json={"domain": "orders", "command_type": "ship",
                                             "data": {"order": 7, "city": "Graz"}})  # fmt: skip
    assert sent.status_code == 200, sent.text
    refused = await api.post(
        "/commands", json={"domain": "orders", "command_type": "ship", "data": {"order": 7}}
    )
    assert refused.status_code == 422
    await api.post("/domains/orders/pause", json={"reason": "stocktaking"})
    why = (await api.get(f"/commands/orders/{sent.json()['command_id']}")).json()["why"]
    assert "stocktaking" in why["summary"]
    await api.post("/domains/orders/resume", json={})
    actions = (await api.get("/actions")).json()["actions"]
    assert [a["action"] for a in actions[:3]] == ["resume", "pause", "send"]
    again = {"domain": "orders", "command_type": "ship", "data": {"order": 7, "city": "Graz"}}
    twice = again | {"command_id": sent.json()["command_id"]}
    assert (await api.post("/commands", json=twice)).status_code == 409


async def test_many_are_edited_by_a_filter_after_a_preview(
    bus: CommandBus, api: httpx.AsyncClient
) -> None:
    for number in range(3):
        await bus.send("later", "ship", {"account": number}, delay=3600)
    body = {"q": "domain:later data.account:1", "delay": 0}
    preview = (await api.post("/commands/reschedule", json=body | {"preview": True})).json()
    assert (preview["matched"], len(preview["examples"]), preview["done"]) == (1, 1, 0)
    refused = await api.post("/commands/reschedule", json=body)
    assert (refused.status_code, "reason" in refused.json()["message"]) == (422, True)
    done = (await api.post("/commands/reschedule", json=body | {"reason": "asked for"})).json()
    assert (done["matched"], done["done"], done["refused"]) == (1, 1, 0)
    assert (await bus.stats("later")).ready == 1
    secret = {"q": "data.password:x", "delay": 0, "preview": True}
    assert (await api.post("/commands/reschedule", json=secret)).status_code == 422
    nothing = await api.post("/commands/resend", json={"preview": True})
    assert "Say which" in nothing.json()["message"]


async def test_schedules_and_limits_are_made_edited_and_removed(
    bus: CommandBus, api: httpx.AsyncClient
) -> None:
    body = {"domain": "orders", "command_type": "count", "cron": "0 3 * * *", "overlap": "skip"}
    made = await api.post("/schedules/weekly/add", json=body | {"data": {"password": "x"}})
    assert made.json()["schedule"]["overlap"] == "skip", made.text
    assert made.json()["schedule"]["data"] == {"password": MASK}, "an answer hides secrets"
    assert (await api.post("/schedules/weekly/add", json=body)).status_code == 409
    edited = await api.post("/schedules/weekly/edit", json={"every": 60, "data": {"password": MASK}})
    assert edited.status_code == 200, edited.text
    record = await bus.get_schedule("weekly")
    assert record is not None
    assert (record.schedule.cron, record.schedule.every) == (None, 60)
    assert record.schedule.data == {"password": "x"}, "a mask stands for what it hides"
    assert (await api.post("/schedules/weekly/delete", json={})).status_code == 422
    gone = await api.post("/schedules/weekly/delete", json={"confirm": "weekly"})
    assert gone.json() == {"done": "weekly is deleted"}
    assert (await api.post("/schedules/weekly/delete", json={"confirm": "weekly"})).status_code == 404
    limit = (await api.post("/limits/orders/set", json={"rate": 5, "reason": "calm"})).json()
    assert (await api.get("/limits")).json()["limits"] == [limit]
    assert (await api.post("/limits/orders/clear", json={})).status_code == 200
    assert (await api.post("/limits/orders/clear", json={})).status_code == 404


async def test_a_domain_is_purged_only_with_its_name(bus: CommandBus, api: httpx.AsyncClient) -> None:
    refused = await api.post("/domains/mail/purge", json={"reason": "x"})
    assert (refused.status_code, "'mail'" in refused.json()["message"]) == (422, True)
    assert "mail" in await bus.list_domains()
    done = await api.post("/domains/mail/purge", json={"reason": "x", "confirm": "mail"})
    assert done.json()["gone"] > 0
    assert "mail" not in await bus.list_domains()


async def test_pages_of_a_filter_cover_everything_once(bus: CommandBus, api: httpx.AsyncClient) -> None:
    for q in ("", "status:completed", "domain:orders type:ship", "status:pending", "tag:express"):
        seen: list[str] = []
        params: dict[str, Any] = {"q": q, "limit": 37}
        while True:
            page = (await api.get("/commands", params=params)).json()
            seen += [c["command_id"] for c in page["commands"]]
            if page["next"] is None:
                break
            params["after"] = page["next"]
        assert len(seen) == len(set(seen)) > 0, q


async def test_answers_fit_the_document(api: httpx.AsyncClient) -> None:
    described = (await api.get("/openapi.json")).json()
    assert described["openapi"].startswith("3.1")
    for path, operations in described["paths"].items():
        if "get" not in operations or "{" in path:
            continue
        answer = await api.get(path)
        assert answer.status_code == 200, path
        schema = operations["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        name = schema["$ref"].rpartition("/")[2]
        required = described["components"]["schemas"][name]["required"]
        assert set(required) <= set(answer.json()), path


# Numbers, shapes and texts that are seldom meant well.
ODD: list[Any] = [
    None, True, -1, 0, 10**30, 1e308, "", " ", "\x00", "x" * 5_000, "\u202e", "' or 1=1 --",
    [], {}, [[[]]], {"a": {"b": [1, None]}}, "NaN", "../../etc/passwd", "%00", str(uuid4()),
    "status:", "age:<999999999999d", 'data.a.b.c:1 "', "data.:x", "after", "-1", "9" * 40,
]  # fmt: skip


def sample(schema: dict[str, Any], chance: random.Random, components: Any, depth: int = 0) -> Any:
    """Mostly what the schema asks for, sometimes anything."""
    if chance.random() < 0.3 or depth > 4:
        return chance.choice(ODD)
    if "$ref" in schema:
        schema = components[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return sample(chance.choice(schema["anyOf"]), chance, components, depth + 1)
    if "enum" in schema:
        return chance.choice(schema["enum"])
    match schema.get("type"):
        case "object":
            return {
                key: sample(part, chance, components, depth + 1)
                for key, part in schema.get("properties", {}).items()
                if chance.random() < 0.7
            }
        case "array":
            return [sample(schema.get("items", {}), chance, components, depth + 1)] * chance.randrange(
                3
            )
        case "integer":
            return chance.choice([0, 1, 50, 200, 201, -5])
        case "number":
            return chance.choice([0.0, 0.5, 300.0, -1.0])
        case "boolean":
            return chance.random() < 0.5
        case "null":
            return None
        case _:
            return chance.choice(["orders", "ship", "bank", "status:parked", str(uuid4())])


@pytest.mark.parametrize("seed", range(extent.sample(2, 6)))
async def test_nothing_that_is_sent_makes_it_stumble(
    api: httpx.AsyncClient, store: str, seed: int
) -> None:
    chance, described = random.Random(f"{seed} on {store[:6]}"), document()
    components = described["components"]["schemas"]
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            for _ in range(6):
                where = re.sub(r"{\w+}", lambda _: _part(chance), path)
                query = {
                    p["name"]: _text(sample(p["schema"], chance, components))
                    for p in operation["parameters"]
                    if p["in"] == "query" and chance.random() < 0.6
                }
                content = None
                if method == "post":
                    body = operation.get("requestBody", {}).get("content", {})
                    schema = body.get("application/json", {}).get("schema", {})
                    content = json.dumps(sample(schema, chance, components))
                    content = content if chance.random() < 0.9 else content[: len(content) // 2]
                answer = await api.request(
                    method, where, params=query, content=content,
                    headers={"content-type": "application/json"},
                )  # fmt: skip
                shown = (method, where, query, content, answer.text[:300])
                assert answer.status_code < 500, shown
                assert str(answer.status_code) in operation["responses"] or answer.status_code == 405, (
                    shown
                )
                json.loads(answer.text)


def _part(chance: random.Random) -> str:
    text = chance.choice(
        ["orders", "bank", "nightly-report", str(uuid4()), "x" * 70, "\u202e", "a b", "'"]
    )
    return httpx.URL("http://x").copy_with(path=f"/{text}").raw_path.decode().lstrip("/")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@pytest.mark.postgres
async def test_pages_read_on_sessions_that_cannot_write() -> None:
    from commandbus.interfaces.web.stores import STATEMENT_MS, reading_url
    from commandbus.store.op import Statement
    from tests.postgres.database import postgres_configuration

    url = postgres_configuration().url
    async with CommandBus(url, migrate=True):
        pass
    reading = reading_url(url)
    assert reading is not None

    def ask(sql: str) -> Any:
        return (yield Statement(sql))[0][0]

    async with CommandBus(reading) as bus:
        assert await bus.session.run(ask("show default_transaction_read_only")) == "on"
        assert await bus.session.run(ask("show statement_timeout")) == f"{STATEMENT_MS // 1000}s"
        with pytest.raises(Exception, match="read-only"):
            await bus.send("orders", "ship")
        assert not await bus.list_domains()
    assert reading_url("sqlite:///bus.db") is None
    assert reading_url(f"{url}&pooler=on" if "?" in url else f"{url}?pooler=on") is None
