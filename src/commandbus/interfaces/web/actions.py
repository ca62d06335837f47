"""What can be done: the same for a form and for a program, each with its actor in the audit."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from msgspec import UNSET

from commandbus.domain import payload
from commandbus.domain.lifecycle import Cancellation
from commandbus.errors import InvalidArgumentError, InvalidOperationError
from commandbus.interfaces.cli.text import plural
from commandbus.interfaces.web import values as v
from commandbus.interfaces.web.identity import Account
from commandbus.interfaces.web.payloads import Payloads
from commandbus.interfaces.web.reads import Reads
from commandbus.interfaces.web.redaction import without_masks
from commandbus.operations.troubleshooting import UNCHANGED
from commandbus.runtimes.asyncio.bus import CommandBus, TroubleshootingQueue


class Desk(Reads):
    """Everything an operator can see and do."""

    payloads: Payloads

    async def pause(self, domain: str, body: v.ReasonBody, who: Account) -> v.Done:
        bus = await self._acting(who)
        await bus.pause(domain, body.reason or None)
        return self._done(f"{domain} is paused")

    async def resume(self, domain: str, who: Account) -> v.Done:
        bus = await self._acting(who)
        await bus.resume(domain)
        return self._done(f"{domain} goes on")

    async def send(self, body: v.SendBody, who: Account) -> v.Sent:
        bus = await self._acting(who)
        self.payloads.check(body.domain, body.command_type, without_masks(body.data))
        result = await bus.send(
            body.domain,
            body.command_type,
            body.data,
            priority=body.priority,
            delay=body.delay,
            max_attempts=body.max_attempts,
            unique_key=body.unique_key,
            reply_to=body.reply_to,
            tags=body.tags,
            command_id=body.command_id,
            headers={"sent_by": who.name},
        )
        self.figures.forget()
        return v.Sent(result.command_id, result.domain, result.duplicate)

    async def cancel(self, domain: str, command_id: UUID, body: v.CancelBody, who: Account) -> v.Done:
        bus = await self._acting(who)
        did = await bus.cancel(command_id, domain=domain, reason=body.reason)
        return self._done("asked to stop" if did is Cancellation.STOP_REQUESTED else "canceled")

    async def reschedule(
        self, domain: str, command_id: UUID, body: v.RescheduleBody, who: Account
    ) -> v.Done:
        bus = await self._acting(who)
        because = body.reason or None
        await bus.reschedule(
            command_id, domain=domain, delay=body.delay, due_at=body.due_at, reason=because
        )
        return self._done("rescheduled")

    async def reprioritise(
        self, domain: str, command_id: UUID, body: v.ReprioritiseBody, who: Account
    ) -> v.Done:
        bus = await self._acting(who)
        because = body.reason or None
        await bus.reprioritise(command_id, body.priority, domain=domain, reason=because)
        return self._done("given another priority")

    async def resend(self, domain: str, command_id: UUID, body: v.RetryBody, who: Account) -> v.Sent:
        """An ended command, as it was or corrected. Masks that were left in it mean what they hid."""
        data = await self._edited(domain, command_id, body)
        bus = await self._acting(who)
        sent = await bus.resend(command_id, data, domain=domain, reason=body.reason or None)
        self.figures.forget()
        return v.Sent(sent.command_id, sent.domain, sent.duplicate)

    async def _edited(self, domain: str, command_id: UUID, body: v.RetryBody) -> Any:
        """The payload of a form, which always sends one; the audit tells of real edits only."""
        if body.data is UNSET:
            return UNCHANGED
        record = await self.raw_command(domain, command_id)
        data = self.redaction.restore(body.data, record.data)
        self.payloads.check(domain, record.command_type, data)
        return UNCHANGED if payload.encode(data) == payload.encode(record.data) else data

    async def retry(self, domain: str, command_id: UUID, body: v.RetryBody, who: Account) -> v.Done:
        """A parked command; with data, corrected. Masks that were left in it mean what they hid."""
        data = await self._edited(domain, command_id, body)
        queue = TroubleshootingQueue(await self._acting(who))
        await queue.operator_retry(command_id, data=data, domain=domain, reason=body.reason or None)
        return self._done("sent back to work")

    async def complete(
        self, domain: str, command_id: UUID, body: v.CompleteBody, who: Account
    ) -> v.Done:
        queue = TroubleshootingQueue(await self._acting(who))
        await queue.operator_complete(
            command_id,
            without_masks(body.result, "result"),
            domain=domain,
            reason=body.reason or None,
        )
        return self._done("completed")

    async def comment(self, domain: str, command_id: UUID, body: v.CommentBody, who: Account) -> v.Done:
        queue = TroubleshootingQueue(await self._acting(who))
        await queue.comment(command_id, body.text, domain=domain)
        return self._done("commented on")

    async def assign(self, domain: str, command_id: UUID, body: v.AssignBody, who: Account) -> v.Done:
        queue = TroubleshootingQueue(await self._acting(who))
        await queue.assign(command_id, body.assignee or None, domain=domain)
        return self._done(f"assigned to {body.assignee or 'nobody'}")

    async def bulk(self, body: v.BulkBody, who: Account) -> v.BulkAnswer:
        """With preview, only a count; without, a reason is needed."""
        if not body.preview and not body.reason:
            raise InvalidArgumentError("Say why, in reason: it is kept in the audit of every command.")
        queue = TroubleshootingQueue(await self._acting(who))
        report = await queue.bulk(
            body.action,
            reason=body.reason or "preview",
            command_ids=body.command_ids,
            domain=body.domain or None,
            command_type=body.command_type or None,
            error_code=body.error_code or None,
            group=body.group or None,
            limit=body.limit,
            preview=body.preview,
        )
        self.figures.forget()
        return v.BulkAnswer(report.matched, report.done, report.refused, body.preview)

    async def cancel_batch(self, batch_id: UUID, body: v.CancelBody, who: Account) -> v.Done:
        bus = await self._acting(who)
        done = await bus.cancel_batch(batch_id, reason=body.reason)
        ended = done.canceled + done.canceled_parked
        asked = f", {done.stop_requested:,} asked to stop" if done.stop_requested else ""
        return self._done(f"{plural(ended, 'command')} canceled{asked}")

    async def cancel_process(self, process_id: UUID, body: v.CancelBody, who: Account) -> v.Done:
        bus = await self._acting(who)
        await bus.cancel_process(process_id, body.reason)
        return self._done("called off")

    async def retry_process(self, process_id: UUID, who: Account) -> v.Done:
        bus = await self._acting(who)
        await bus.retry_process(process_id)
        return self._done("retried")

    async def skip_compensation(self, process_id: UUID, body: v.CancelBody, who: Account) -> v.Done:
        bus = await self._acting(who)
        await bus.skip_compensation(process_id, body.reason)
        return self._done("told to go on")

    async def change_schedule(self, name: str, change: str, who: Account) -> v.Done:
        bus = await self._acting(who)
        match change:
            case "enable":
                await bus.enable_schedule(name)
                return self._done(f"{name} is enabled")
            case "disable":
                await bus.disable_schedule(name)
                return self._done(f"{name} is disabled")
            case "trigger":
                sent = await bus.trigger_schedule(name)
                return self._done(f"{name} has sent {sent.command_id}")
            case _:
                if not await bus.delete_schedule(name):
                    raise InvalidOperationError(f"There is no schedule {name!r}.")
                return self._done(f"{name} is deleted")

    async def open_breaker(self, target: str, body: v.BreakerBody, who: Account) -> v.Done:
        bus = await self._acting(who)
        await bus.open_breaker(target, body.cooldown, reason=body.reason or None)
        return self._done(f"nothing gets through to {target}")

    async def reset_breaker(self, target: str, body: v.ReasonBody, who: Account) -> v.Done:
        bus = await self._acting(who)
        await bus.reset_breaker(target, reason=body.reason or None)
        return self._done(f"{target} is called again")

    async def _acting(self, who: Account) -> CommandBus:
        return (await self.stores.acting()).acting(who.name)

    def _done(self, text: str) -> v.Done:
        self.figures.forget()
        return v.Done(text)
