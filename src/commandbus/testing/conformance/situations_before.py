"""Staged situations of commands that wait, or have ended; see `situations.py`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from commandbus.errors import (
    BreakerOpen,
    BusinessRuleException,
    PermanentCommandError,
    RetryAfter,
    Snooze,
    TransientCommandError,
)
from commandbus.operations.presence import HEARTBEAT, MISSED_MAX
from commandbus.testing.conformance.helpers import Stage, situation

MINUTE = 60.0


# No worker, or not the right one.


@situation("No worker was started", "NO_WORKER", says="no live worker serves domain", cure="start one")
def no_worker(at: Stage) -> Any:
    return at.send()


@situation(
    "Workers serve other domains only", "NO_WORKER",
    says="no live worker serves domain", cure="start a worker for this domain",
)  # fmt: skip
def other_domain(at: Stage) -> Any:
    Stage(at.bus, f"{at.domain}_other").serve()
    return at.send()


@situation(
    "The whole fleet died without a word", "NO_WORKER",
    says="no live worker serves domain", cure="start workers; what they ran comes back by itself",
)  # fmt: skip
def dead_fleet(at: Stage) -> Any:
    at.serve(count=3)
    at.bus.advance(MISSED_MAX * HEARTBEAT + 1)
    return at.send()


@situation(
    "No worker has a handler for the type", "NO_HANDLER",
    says="no live worker has a handler for 'unheard'", cure="deploy the handler, or correct the type",
)  # fmt: skip
def no_handler(at: Stage) -> Any:
    at.serve()
    return at.send("unheard")


@situation(
    "None of several workers has a handler", "NO_HANDLER",
    says="none of 3 live workers has a handler", cure="deploy the handler, or correct the type",
)  # fmt: skip
def no_handler_of_many(at: Stage) -> Any:
    at.serve(count=3)
    return at.send("unheard")


@situation(
    "Its type is misspelt", "NO_HANDLER",
    says="has a handler for 'shp'; is it 'ship', which has one?",
    cure="send it again with the right type, and cancel this one",
)  # fmt: skip
def misspelt(at: Stage) -> Any:
    at.serve()
    return at.send("shp")


@situation(
    "Its type is much like one that was sent recently", "NO_HANDLER",
    says="; is it 'refund_order', which was sent recently?",
    cure="deploy the handler, or correct the type",
)  # fmt: skip
def misspelt_of_recent(at: Stage) -> Any:
    at.serve()
    at.send("refund_order")
    at.complete()
    return at.send("refund_ordr")


@situation(
    "A rolling deploy has not reached a worker yet", "SCHEDULED", "NO_HANDLER",
    says="it was put off until", cure="wait for the deploy; the command comes back by itself",
)  # fmt: skip
def rolling_deploy(at: Stage) -> Any:
    at.serve()
    sent = at.send("fresh")
    at.fail(Snooze(MINUTE, "no handler yet"))
    return sent


@situation(
    "A rolling deploy has reached one worker", "NEXT",
    says="nothing is in its way", cure="nothing to do",
)  # fmt: skip
def half_deployed(at: Stage) -> Any:
    at.serve("ship")
    at.serve("ship", "fresh")
    return at.send("fresh")


@situation(
    "No worker has the tags it requires", "NO_TAGS",
    says="has the tags it requires: gpu", cure="start a worker with these tags", needs="gates",
)  # fmt: skip
def wrong_tags(at: Stage) -> Any:
    at.serve(tags=("cpu",))
    return at.send(requires=["gpu"])


@situation(
    "The worker with the tags lacks the handler", "NO_HANDLER",
    says="with the tags it requires has a handler", cure="deploy the handler there", needs="gates",
)  # fmt: skip
def tagged_without_handler(at: Stage) -> Any:
    at.serve("ship", tags=("cpu",))
    at.serve("other", tags=("gpu",))
    return at.send(requires=["gpu"])


@situation(
    "All slots are taken", "BUSY",
    says="all 1 slots of the live worker are taken", cure="wait, or start more workers",
)  # fmt: skip
def busy(at: Stage) -> Any:
    at.serve(concurrency=1)
    at.send()
    at.take()
    return at.send()


@situation(
    "A handler blocks the event loop", "UNCLAIMED",
    says="did not take it: a handler may block the event loop",
    cure="look at the worker's log and its probe; make the handler `def`, or await",
)  # fmt: skip
def blocked_loop(at: Stage) -> Any:
    at.serve()
    sent = at.send()
    at.bus.advance(40)
    return sent


@situation("It was just sent", "NEXT", says="nothing is in its way", cure="nothing to do")
def just_sent(at: Stage) -> Any:
    at.serve()
    return at.send()


@situation(
    "Others were sent before", "AHEAD", says="2 commands are ahead", cure="wait, or reprioritise"
)
def behind(at: Stage) -> Any:
    at.serve()
    at.send()
    at.send(priority="high")
    return at.send()


# Operators.


@situation("The domain is paused", "PAUSED", says="is paused: stocktaking", cure="resume it")
def paused(at: Stage) -> Any:
    at.serve()
    sent = at.send()
    at.bus.pause(at.domain, "stocktaking")
    return sent


@situation(
    "The domain is paused, and no worker runs", "PAUSED", "NO_WORKER",
    says="is paused; no live worker", cure="start workers, then resume it",
)  # fmt: skip
def paused_alone(at: Stage) -> Any:
    sent = at.send()
    at.bus.pause(at.domain)
    return sent


@situation(
    "All workers that could run it are quiet", "QUIET",
    says="all 2 workers that could run it are quiet (asked by ada at 20", cure="resume one of them",
)  # fmt: skip
def quiet(at: Stage) -> Any:
    at.serve(count=2)
    at.bus.call(at.bus.bus.acting("ada").quiet_workers, domain=at.domain)
    return at.send()


@situation(
    "One of two workers is quiet, and the other is busy", "BUSY",
    says="all 1 slots of the live worker are taken", cure="wait, or resume the quiet one",
)  # fmt: skip
def half_quiet(at: Stage) -> Any:
    at.serve(concurrency=4)
    at.bus.call(at.bus.bus.acting("ada").quiet_workers, domain=at.domain)
    at.serve(concurrency=1)
    at.send()
    at.take()
    return at.send()


@situation(
    "Its worker was asked to stop", "STOPPING",
    says="the worker that could run it is stopping (asked by ada at 20", cure="start another worker",
)  # fmt: skip
def stopping(at: Stage) -> Any:
    at.serve()
    at.bus.call(at.bus.bus.acting("ada").stop_workers, domain=at.domain)
    return at.send()


@situation("It was canceled", "ENDED", says="CANCELED at", cure="resend it, if it is needed")
def canceled(at: Stage) -> Any:
    sent = at.send()
    at.bus.cancel(sent, domain=at.domain, reason="ordered twice")
    return sent


@situation(
    "A running command was asked to stop", "RUNNING", "CANCEL_REQUESTED",
    says="it was asked to stop", cure="wait until the handler gives way, or terminate it",
)  # fmt: skip
def cancel_requested(at: Stage) -> Any:
    sent = at.send()
    at.take()
    at.bus.cancel(sent, domain=at.domain)
    return sent


@situation(
    "An operator retried a parked command", "NEXT", says="nothing is in its way", cure="nothing to do"
)
def retried(at: Stage) -> Any:
    at.serve()
    sent = at.send()
    at.fail(PermanentCommandError("BROKEN"))
    at.bus.operator_retry(sent)
    return sent


# Time.


@situation("It was sent with a delay", "SCHEDULED", says="it is due at 20", cure="wait, or reschedule")
def delayed(at: Stage) -> Any:
    at.serve()
    return at.send(delay=MINUTE)


@situation(
    "The clock of its sender is ahead", "SCHEDULED",
    says="it is due at 20", cure="set the sender's clock; send with delay= instead of due_at=",
)  # fmt: skip
def clock_ahead(at: Stage) -> Any:
    at.serve()
    return at.send(due_at=at.bus.now + timedelta(minutes=5))


@situation(
    "It has expired, and no worker came to it", "NO_WORKER", "EXPIRED",
    says="it expired at 20", cure="start a worker; the command ends CANCELED",
)  # fmt: skip
def expired(at: Stage) -> Any:
    sent = at.send(expires_at=at.bus.now + timedelta(seconds=10))
    at.bus.advance(20)
    return sent


@situation(
    "It expired before its turn came", "ENDED", says="EXPIRED", cure="send it again, if it is needed"
)
def ended_expired(at: Stage) -> Any:
    sent = at.send(expires_at=at.bus.now + timedelta(seconds=10))
    at.bus.advance(20)
    at.bus.receive(at._hand)
    return sent


# What happened at the last attempt.


@situation(
    "An attempt failed, and the next one is not due", "SCHEDULED",
    says="attempt 1 failed with KeyError, the next one is due", cure="wait, or fix the cause",
)  # fmt: skip
def retry_wait(at: Stage) -> Any:
    at.serve()
    sent = at.send()
    at.fail(KeyError("city"))
    return sent


@situation(
    "The handler asked to be retried later", "SCHEDULED",
    says="attempt 1 failed with", cure="wait",
)  # fmt: skip
def retry_after(at: Stage) -> Any:
    at.serve()
    sent = at.send()
    at.fail(RetryAfter(MINUTE, "429"))
    return sent


@situation(
    "The handler put it off", "SCHEDULED", says="it was put off until", cure="wait",
)  # fmt: skip
def snoozed(at: Stage) -> Any:
    at.serve()
    sent = at.send()
    at.fail(Snooze(MINUTE, "the shop is closed"))
    return sent


@situation(
    "A breaker is open", "BREAKER_OPEN",
    says="the breaker of 'bank' is open until", cure="fix the target, or reset the breaker",
)  # fmt: skip
def breaker(at: Stage) -> Any:
    at.serve()
    sent = at.send()
    at.fail(BreakerOpen("bank", MINUTE))
    return sent


@situation(
    "Its retries failed, and the domain is paused", "PAUSED", "SCHEDULED",
    says="attempt 1 failed with DOWN", cure="fix the cause, then resume the domain",
)  # fmt: skip
def retry_wait_paused(at: Stage) -> Any:
    at.serve()
    sent = at.send()
    at.fail(TransientCommandError("DOWN"))
    at.bus.pause(at.domain)
    return sent


@situation(
    "It is parked: an error that a retry cannot fix", "PARKED",
    says="parked for an operator at 20", cure="fix the cause, then retry it",
)  # fmt: skip
def parked(at: Stage) -> Any:
    sent = at.send()
    at.fail(PermanentCommandError("BROKEN", "no such city"))
    return sent


@situation(
    "It is parked: its attempts are used up", "PARKED",
    says="after 1 attempt", cure="fix the cause, then retry it",
)  # fmt: skip
def exhausted(at: Stage) -> Any:
    sent = at.send(max_attempts=1)
    at.fail(TransientCommandError("DOWN"))
    return sent


@situation(
    "A business rule refused it", "ENDED", says="FAILED at", cure="nothing to do: it is an answer"
)
def refused(at: Stage) -> Any:
    sent = at.send()
    at.fail(BusinessRuleException("SOLD_OUT"))
    return sent


@situation("It has completed", "ENDED", says="COMPLETED at", cure="nothing to do")
def completed(at: Stage) -> Any:
    sent = at.send()
    at.complete()
    return sent


# Limits and groups.


@situation(
    "A member of its group is running", "GROUP_BLOCKED",
    says="its group 'order-7' is blocked by", cure="wait for that command", needs="gates",
)  # fmt: skip
def group_running(at: Stage) -> Any:
    at.serve()
    at.send(group_key="order-7")
    at.take()
    return at.send(group_key="order-7")


@situation(
    "So many run at once as a limit allows", "LIMIT_REACHED",
    says="a limit is reached: 1 at once", cure="wait, or raise the limit", needs="gates",
)  # fmt: skip
def limited(at: Stage) -> Any:
    at.serve()
    at.limit(concurrency=1)
    at.send()
    at.take()
    return at.send()


@situation(
    "So many of its type run as a limit allows", "LIMIT_REACHED",
    says="of type 'ship'", cure="wait, or raise the limit", needs="gates",
)  # fmt: skip
def limited_type(at: Stage) -> Any:
    at.serve()
    at.limit(command_type="ship", concurrency=1)
    at.send()
    at.take()
    return at.send()


@situation(
    "So many started as a rate allows", "LIMIT_REACHED",
    says="1 per hour", cure="wait, or raise the limit", needs="gates",
)  # fmt: skip
def rate(at: Stage) -> Any:
    at.serve()
    at.limit(rate=1, per=3600)
    at.send()
    at.take()
    return at.send()
