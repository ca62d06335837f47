"""Every action that the API offers is in the audit, with the name of whoever acted."""

from __future__ import annotations

from typing import Any

import httpx

from commandbus import CommandBus, Schedule, SendRequest
from commandbus.interfaces.web import create_dashboard
from commandbus.interfaces.web.endpoints import ENDPOINTS
from commandbus.interfaces.web.openapi import PREFIX
from tests.web import saga, scene
from tests.web.people import AS_OTTO, OTTO

WHY = {"reason": "because"}


async def requests(bus: CommandBus) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """By endpoint: the parts of a path, and a body, with which it has something to do."""
    await scene.fill(bus)
    await scene.present(bus)
    ids = await saga.drive(
        bus, called_off=saga.Order("piano", 901), skipped=saga.Order("piano", 20_000)
    )
    parked = await bus.query_commands(domain="orders", status="IN_TROUBLESHOOTING_QUEUE")
    commands = [{"domain": "orders", "command_id": command.command_id} for command in parked]
    batch = await bus.create_batch([SendRequest("mail", "welcome")])
    nightly = Schedule(
        name="nightly", domain="orders", command_type="count", cron="0 3 * * *", enabled=False
    )
    await bus.put_schedule(nightly)
    name, target = {"name": "nightly"}, {"target": "bank"}
    chosen = [str(parked[4].command_id)]
    later = await bus.send("orders", "count", delay=3600)
    waiting = {"domain": "orders", "command_id": later.command_id}
    sent = {"domain": "orders", "command_type": "ship", "data": {"order": 1, "city": "Oslo"}}
    return {
        "post_domains_domain_pause": ({"domain": "orders"}, WHY),
        "post_domains_domain_resume": ({"domain": "orders"}, {}),
        "post_commands": ({}, sent),
        "post_commands_domain_command_id_cancel": (commands[0], WHY),
        "post_commands_domain_command_id_reschedule": (waiting, {"delay": 60}),
        "post_commands_domain_command_id_reprioritise": (waiting, {"priority": "high"}),
        "post_commands_domain_command_id_resend": (commands[0], WHY),
        "post_commands_domain_command_id_retry": (commands[1], WHY),
        "post_commands_domain_command_id_complete": (commands[2], WHY),
        "post_commands_domain_command_id_comment": (commands[3], {"text": "looked at it"}),
        "post_commands_domain_command_id_assign": (commands[3], {"assignee": "ana"}),
        "post_commands_domain_command_id_unassign": (commands[3], WHY),
        "post_commands_domain_command_id_cancel_parked": (commands[5], WHY),
        "post_commands_retry": ({}, WHY | {"command_ids": chosen}),
        "post_commands_complete": ({}, WHY | {"command_ids": [str(parked[6].command_id)]}),
        "post_commands_cancel_parked": ({}, WHY | {"command_ids": [str(parked[7].command_id)]}),
        "post_commands_reschedule": ({}, WHY | {"q": "type:count status:pending", "delay": 1}),
        "post_commands_reprioritise": ({}, WHY | {"q": "type:count", "priority": "low"}),
        "post_commands_resend": ({}, WHY | {"q": "status:canceled domain:orders", "limit": 5}),
        "post_domains_domain_purge": ({"domain": "payments"}, WHY | {"confirm": "payments"}),
        "post_limits_domain_set": ({"domain": "orders"}, {"rate": 1000}),
        "post_limits_domain_clear": ({"domain": "orders"}, WHY),
        "post_schedules_name_add": ({"name": "new"}, sent | {"every": 60}),
        "post_schedules_name_edit": (name, {"cron": "0 4 * * *"}),
        "post_processes_process_id_signal": ({"process_id": ids["stuck"]}, {"signal": "paid"}),
        "post_store_prune": ({}, {"completed": 3600, "confirm": "prune"}),
        "post_store_erase": (
            {},
            WHY | {"subject": ["data.order=1"], "cancel_waiting": True, "confirm": "erase"},
        ),
        "post_batches_batch_id_cancel": ({"batch_id": batch.batch_id}, WHY),
        "post_processes_process_id_cancel": ({"process_id": ids["called_off"]}, WHY),
        "post_processes_process_id_end": ({"process_id": ids["called_off"]}, WHY),
        "post_processes_process_id_retry": ({"process_id": ids["stuck"]}, {}),
        "post_processes_process_id_skip": ({"process_id": ids["skipped"]}, WHY),
        "post_schedules_name_enable": (name, {}),
        "post_schedules_name_disable": (name, {}),
        "post_schedules_name_trigger": (name, {}),
        "post_schedules_name_delete": (name, {"confirm": "nightly"}),
        "post_workers_quiet": ({}, {"workers": ["worker-1"]}),
        "post_workers_resume": ({}, {"workers": ["worker-1"]}),
        "post_workers_concurrency": ({}, {"workers": ["worker-1"], "concurrency": 6}),
        "post_workers_stop": ({}, WHY | {"host": "node-2"}),
        "post_breakers_target_open": (target, WHY),
        "post_breakers_target_reset": (target, WHY),
    }


async def test_every_action_is_kept_with_its_actor() -> None:
    async with CommandBus("memory://") as bus:
        asked = await requests(bus)
        transport = httpx.ASGITransport(app=create_dashboard(bus, accounts=[OTTO]))
        headers = AS_OTTO
        base = f"https://bus.example{PREFIX}"
        async with httpx.AsyncClient(transport=transport, base_url=base, headers=headers) as api:
            for endpoint in ENDPOINTS:
                if endpoint.method == "GET":
                    continue
                parts, body = asked[endpoint.name]
                before = await _kept(api)
                answer = await api.post(endpoint.path.format(**parts), json=body)
                assert answer.status_code == 200, (endpoint.name, answer.text)
                is_kept = await _kept(api) > before
                assert is_kept or endpoint.name == "post_store_prune", endpoint.name
                # A prune that finds nothing leaves no record.


async def _kept(api: httpx.AsyncClient) -> int:
    """How much the audit knows of otto."""
    actions = (await api.get("/actions", params={"limit": 200})).json()["actions"]
    events = (await api.get("/audit", params={"actor": "otto", "limit": 200})).json()["events"]
    return sum(action["actor"] == "otto" for action in actions) + len(events)
