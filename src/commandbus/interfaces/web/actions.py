"""Operator actions of the table and sending, for forms and API alike."""

from __future__ import annotations

import asyncio
from typing import Any

from commandbus.domain import payload
from commandbus.domain.command import SendOptions
from commandbus.errors import InvalidArgumentError
from commandbus.interfaces.actions.answers import Sent
from commandbus.interfaces.actions.carrying import (
    answer_of,
    call_of,
    call_of_many,
    carry_out,
    sentence_of,
)
from commandbus.interfaces.actions.model import Action, Given, Kind
from commandbus.interfaces.redaction import Redaction, without_masks
from commandbus.interfaces.web import schemas as v
from commandbus.interfaces.web.bulk import Bulk, Bulks, Progress
from commandbus.interfaces.web.identity import Account
from commandbus.interfaces.web.payloads import Payloads
from commandbus.interfaces.web.reads import Reads
from commandbus.interfaces.web.saved import Views
from commandbus.interfaces.web.stores import Stores
from commandbus.runtimes.asyncio.facade import awaiting, awaiting_flow

MANY = 1_000
"""So many commands at a time through the API, if nothing else is said."""
BULK_SECONDS = 1.0
"""How long a form waits for a bulk action before it shows its page."""


class OperatorApi(Reads):
    """Everything an operator can see and do."""

    payloads: Payloads

    def __init__(self, stores: Stores, redaction: Redaction) -> None:
        super().__init__(stores, redaction)
        self.bulks = Bulks(stores)
        self.views = Views(stores)

    async def act(self, action: Action, given: Given, who: Account) -> tuple[Any, str]:
        """Carry an action out. Returns its answer, and the same in words."""
        preview = given.pop("preview", False)
        word = action.confirm.format(**given)
        if word and not preview and given.pop("confirm", "") != word:
            raise InvalidArgumentError(
                f"{action.word} cannot be undone: repeat the word {word!r} in confirm."
            )
        given = await self._unmasked(action, given)
        result = await self._run(
            call_of(action, given, preview=preview, is_secret=self.redaction.is_secret), who
        )
        sentence = sentence_of(action, given, result)
        return answer_of(action, given, self.redaction.shown(result)), sentence

    async def act_on_many(
        self, action: Action, given: Given, who: Account, *, preview: bool = False
    ) -> Any:
        """The report of the operation. A reason is needed, except for a preview."""
        if not preview and not given.get("reason"):
            raise InvalidArgumentError("Say why, in reason: it is kept in the audit of every command.")
        given = {name: value for name, value in given.items() if value is not None}
        if "progress" not in given and not preview:
            given = {"limit": MANY} | given
        more = {name: given.pop(name) for name in ("everything", "progress") if name in given}
        given = await self._unmasked(action, given)
        call = call_of_many(action, given, preview=preview, is_secret=self.redaction.is_secret, **more)
        return await self._run(call, who, changes=not preview)

    async def begin_bulk(self, action: Action, given: Given, who: Account, bulk: Bulk) -> Bulk:
        """Carry an action out on all commands that match, in the background. Returns the bulk action
        after a moment, in which a small one ends."""
        call_of_many(action, dict(given), is_secret=self.redaction.is_secret)  # raises before it begins

        async def work(progress: Progress) -> Any:
            return await self.act_on_many(action, given | {"progress": progress}, who)

        task = await self.bulks.start(bulk, work)
        await asyncio.wait([task], timeout=BULK_SECONDS)
        return task.result() if task.done() else bulk

    async def _run(self, call: Any, who: Account, *, changes: bool = True) -> Any:
        bus = await self.stores.acting()
        result = await carry_out(bus, who.name, call, (awaiting, awaiting_flow))
        if changes:
            self._forget()
        return result

    def _forget(self) -> None:
        """Something was changed here, so the next page must show it."""
        self.figures.forget()
        self.failure_groups.forget()

    async def _unmasked(self, action: Action, given: Given) -> Given:
        """Masks left in an edited document stand for the values that they hide; they are refused in
        others. A document that was left as it is was not edited."""
        found = dict(given)
        for param in action.params:
            if param.kind is not Kind.DOCUMENT or param.name not in given:
                continue
            if not param.edits:
                found[param.name] = without_masks(given[param.name], param.name)
                continue
            domain, command_type, present = await self._present(action, given)
            edited = self.redaction.restore(given[param.name], present)
            self.payloads.check(domain, command_type, edited)
            found[param.name] = edited
            if payload.encode(edited) == payload.encode(present):
                del found[param.name]
        return found

    async def _present(self, action: Action, given: Given) -> tuple[str, str, Any]:
        """The document of a subject, with its secrets, and the command that it is for."""
        if action.subject.noun == "schedule":
            schedule = (await self.raw_schedule(given["name"])).schedule
            domain = given.get("domain") or schedule.domain
            return domain, given.get("command_type") or schedule.command_type, schedule.data
        record = await self.raw_command(given["domain"], given["command_id"])
        return record.domain, record.command_type, record.data

    async def send(self, body: v.SendBody, who: Account) -> Sent:
        bus = (await self.stores.acting()).acting(who.name)
        self.payloads.check(body.domain, body.command_type, without_masks(body.data))
        options: Any = {
            name: getattr(body, name)
            for name in body.__struct_fields__
            if name in SendOptions.__annotations__
        }
        sender = {"sent_by": who.name}
        result = await bus.send(body.domain, body.command_type, body.data, headers=sender, **options)
        self._forget()
        return Sent(result.command_id, result.domain, result.duplicate)
