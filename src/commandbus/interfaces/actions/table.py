"""The table of operator actions. To add one, write its operation and a row here."""

from __future__ import annotations

from commandbus.errors import InvalidArgumentError
from commandbus.interfaces.actions import wording
from commandbus.interfaces.actions.model import Action, Given, Kind, Many, Param, Subject
from commandbus.interfaces.cli import text

# Subjects.

_DOMAIN = Param("domain", "The domain.", longest=63, required=True)
_COMMAND_ID = Param("command_id", "The command's id.", Kind.ID, metavar="ID", required=True)
_BATCH_ID = Param("batch_id", "The batch's id.", Kind.ID, metavar="ID", required=True)
_PROCESS_ID = Param("process_id", "The process's id.", Kind.ID, metavar="ID", required=True)
_NAME = Param("name", "The schedule's name.", longest=63, required=True)
_TARGET = Param("target", "What the breaker guards, such as a bank.", longest=63, required=True)

COMMAND = Subject("command", (_DOMAIN, _COMMAND_ID), "/commands")
DOMAIN = Subject("domain", (_DOMAIN,), "/domains", asked="/domain")
LIMIT = Subject("limit", (_DOMAIN,), "/domains", page="/domains/{domain}", api="/limits")
SCHEDULE = Subject("schedule", (_NAME,), "/schedules", page="/schedules")
BREAKER = Subject("breaker", (_TARGET,), "/breakers", page="/breakers")
BATCH = Subject("batch", (_BATCH_ID,), "/batches")
PROCESS = Subject("process", (_PROCESS_ID,), "/processes")
WORKER = Subject("worker", (), "/workers", page="/workers")
STORE = Subject("store", (), "/system", page="/system", api="/store")

# Parameters of several actions.

_IDS = Param("command_ids", "Commands by their ids.", Kind.IDS, most=5_000)
_IN_DOMAIN = Param("domain", "Only this domain.", flags=("--domain", "-d"))
_TYPE = Param("command_type", "Only this command type.", flags=("--type", "-t"))
_LIMIT = Param("limit", "How many at most.", Kind.INTEGER, most=5_000)
_PARKED = (
    _IDS, _IN_DOMAIN, _TYPE,
    Param("error_code", "Only with this error code.", flags=("--code", "-c")),
    Param("group", "Only this group of failures.", metavar="GROUP"),
    _LIMIT,
)  # fmt: skip
_FILTERED = (
    _IDS, _IN_DOMAIN, _TYPE,
    Param("tag", "Only those with this tag."),
    Param("q", "A filter as for lists: 'age:<2h data.account:42'.", flags=("--filter",),
        longest=1_000),
    _LIMIT,
)  # fmt: skip
_PRIORITY = Param(
    "priority", "high, normal, low or a number.", Kind.PRIORITY, flags=("--priority", "-p")
)
_OF_TYPE = Param(
    "command_type", "Only this type, not the whole domain.", flags=("--type",), metavar="TYPE"
)
_PER_KEY = Param("per_key", "Each group key by itself.", Kind.FLAG)
_PER_SENDER = Param("per_sender", "Sends of each sender by itself.", Kind.FLAG)
_WORKERS = (
    Param("workers", "Names of workers, in full or their first or last characters.", Kind.WORDS,
        positional=True, metavar="ID"),
    Param("domain", "All workers that serve this domain.", flags=("--domain", "-d"), longest=63),
    Param("host", "All workers on this host.", longest=255),
)  # fmt: skip


_CANARY = (
    Param("canary", "Of many: retry so many first, and the rest when these have completed.",
        Kind.INTEGER, metavar="N"),
    Param("patience", "How long a canary may take to complete.", Kind.DURATION, metavar="TIME",
        default="60s"),
)  # fmt: skip


def _parked(verb: str, *params: Param) -> Many:
    conditions, fixed = _PARKED, {"action": verb}
    return Many(
        "bulk_troubleshooting.bulk", "parked command", conditions, params, fixed, everything=True
    )


def _when(required: bool) -> tuple[Param, ...]:
    """The fields of a schedule, which are required to add one."""
    once, allow, utc = ("once", "allow", "UTC") if required else (None, None, None)
    return (
        Param("domain", "The domain to send to.", required=required, positional=required),
        Param("command_type", "The command to send.", required=required, positional=required,
            flags=("--type",)),
        Param("data", "Its payload.", Kind.DOCUMENT,
            positional=required, edits=not required),
        Param("cron", 'Five fields, as "*/5 * * * *".', metavar="FIELDS"),
        Param("every", "At this interval: 60, 5m, 2h.", Kind.DURATION, metavar="TIME"),
        Param("timezone", "The time zone of cron, as Europe/Berlin.", default=utc, metavar="ZONE"),
        Param("misfire", "Runs that were missed: skip, once or all.", Kind.CHOICE, default=once,
            choices=("skip", "once", "all")),
        Param("overlap", "While an earlier command has not ended: allow or skip.", Kind.CHOICE,
            default=allow, choices=("allow", "skip")),
        _PRIORITY,
    )  # fmt: skip


# From keys and parameters to arguments.


def _original(given: Given) -> Given:
    return {"original" if key == "command_id" else key: value for key, value in given.items()}


def _scheduled(given: Given) -> Given:
    return {key: value for key, value in given.items() if key != "disabled"} | {
        "enabled": not given.get("disabled")
    }


def _keep(given: Given) -> Given:
    """The command line's options, by the status that each is about."""
    keep = {name.upper(): given[name] for name in wording.RETAINED if name in given}
    if not keep:
        raise InvalidArgumentError(
            "Say what to forget, and when: --completed 7d, --failed 90d or --canceled 30d."
        )
    return {key: value for key, value in given.items() if key not in wording.RETAINED} | {"keep": keep}


def _subject(given: Given) -> Given:
    """Conditions by where the value is: `data.account=42`, `header.tenant=7`, `tag=customer-42`."""
    found: dict[str, dict[str, str]] = {"data": {}, "header": {}, "tag": {}}
    for condition in given["subject"]:
        where, is_one, value = condition.partition("=")
        place, _, path = where.partition(".")
        if not is_one or place not in found or (place == "tag") == bool(path):
            raise InvalidArgumentError(
                f"{condition!r} does not say whose data: write data.account=42, header.tenant=7 or "
                "tag=customer-42."
            )
        if found[place].setdefault(path, value) != value:
            raise InvalidArgumentError(
                f"{where} is given with two values; all conditions must hold, so give one of them."
            )
    shaped = {key: value for key, value in given.items() if key != "subject"}
    return shaped | {"data": found["data"], "headers": found["header"], "tag": found["tag"].get("")}


ENDED = ("COMPLETED", "FAILED", "CANCELED")
PARKED = ("IN_TROUBLESHOOTING_QUEUE",)

ACTIONS: tuple[Action, ...] = (
    # Commands.
    Action(
        "retry", COMMAND, "tsq retry", "troubleshooting.operator_retry",
        "Send parked commands back to work with fresh attempts.", "sent back to work",
        (Param("data", "A corrected payload.", Kind.DOCUMENT, edits=True,
            one_only=True),),
        many=_parked("retry", *_CANARY), when=PARKED, style="main", button="Retry with this payload",
    ),
    Action(
        "complete", COMMAND, "tsq complete", "troubleshooting.operator_complete",
        "End parked commands as completed: an operator did their work by hand.", "completed",
        (Param("result", "The result you vouch for.", Kind.DOCUMENT),),
        many=_parked("complete"), when=PARKED,
    ),
    Action(
        "cancel", COMMAND, "cancel", "canceling.cancel",
        "Cancel commands that wait or are parked, or ask those that run to stop.", wording.canceled,
        (Param("terminate", "Kill the child process of a handler that has one.", Kind.FLAG),),
        reason="required", reason_default="canceled on the command line",
        when=("PENDING", "IN_PROGRESS", *PARKED), style="danger",
    ),
    Action(
        "cancel-parked", COMMAND, "tsq cancel", "troubleshooting.operator_cancel",
        "End parked commands as canceled; others stay as they are.", "canceled",
        reason="required", reason_default="canceled by an operator",
        many=_parked("cancel"), when=PARKED, offered=False, button="Cancel", style="danger",
    ),
    Action(
        "reschedule", COMMAND, "reschedule", "edits.reschedule",
        "Let waiting commands become due at another time.", "rescheduled",
        (
            Param("delay", "Due so long from now; 0s is now.", Kind.DURATION, metavar="TIME",
                initial="0s"),
            Param("due_at", "Due then, such as 2030-05-17T08:00Z.", Kind.MOMENT, flags=("--at",
                "--due-at"), metavar="MOMENT"),
        ),
        many=Many("edits.reschedule_many", "command", _FILTERED), when=("PENDING",),
    ),
    Action(
        "reprioritise", COMMAND, "reprioritise", "edits.reprioritise",
        "Give waiting commands another priority.", "reprioritised",
        (Param("priority", _PRIORITY.help, Kind.PRIORITY, default="high", flags=_PRIORITY.flags),),
        many=Many("edits.reprioritise_many", "command", _FILTERED), when=("PENDING",),
    ),
    Action(
        "resend", COMMAND, "resend", "edits.resend",
        "Send ended commands again, as new commands.", wording.resent,
        (Param("data", "Another payload, for one command.", Kind.DOCUMENT, edits=True,
            one_only=True),),
        many=Many(
            "edits.resend_many", "command", _FILTERED,
            (Param("status", "Of many: completed, failed or canceled.", Kind.CHOICE,
                default="failed", choices=("completed", "failed", "canceled")),),
            done="sent again",
        ),
        answers="Sent", shape=_original, when=ENDED, button="Resend with this payload",
    ),
    Action(
        "comment", COMMAND, "tsq comment", "parked_notes.comment",
        "Add a comment to the trail of a command.", "commented on",
        (Param("text", "The comment.", required=True, positional=True, longest=2_000),), when=PARKED,
    ),
    Action(
        "assign", COMMAND, "tsq assign", "parked_notes.assign",
        "Assign a parked command to a person.", "assigned to {assignee}",
        (Param("assignee", "Who works on it.", required=True, positional=True, metavar="NAME",
            longest=200),),
        when=PARKED,
    ),
    Action(
        "unassign", COMMAND, "tsq unassign", "parked_notes.assign",
        "Take the assignment of a parked command back.", "unassigned",
        fixed={"assignee": None}, when=("assigned",),
    ),
    # Domains and their limits.
    Action(
        "pause", DOMAIN, "queue pause", "queues.pause",
        "Stop giving out a domain's commands, for the whole fleet, until it is resumed.",
            "{domain} is paused",
        (Param("new", "Also a domain that nothing was sent to; else its name is taken for a mistake.",
            Kind.FLAG),),
        details="Sends are still accepted, and commands that run now finish.",
        exists="may", when=("open",), shape=lambda given: {"new": False} | given,
    ),
    Action(
        "resume", DOMAIN, "queue resume", "queues.resume",
        "Give out a paused domain's commands again.",
        lambda given, was_paused: f"{given['domain']} {'is open' if was_paused else 'was not paused'}",
        when=("paused",), style="main",
    ),
    Action(
        "purge", DOMAIN, "queue purge", "queues.purge",
        "Forget a domain: waiting, running and ended commands, with their audit trails.",
        lambda given, report: f"forgot {text.plural(report.gone, 'command')} of {given['domain']}",
        details="No sender gets a reply, and nothing can be brought back; the list of actions keeps "
        "the operator and the reason. To end commands with a trace, cancel them.",
        confirm="{domain}", answers="PurgeReport", back="/domains", style="danger",
    ),
    Action(
        "set", LIMIT, "limit set", "limits.set_limit",
        "Limit a domain, a type, or each group key; for the whole fleet, at once.",
        lambda given, limit: f"limited to {limit}",
        (
            _OF_TYPE, _PER_KEY, _PER_SENDER,
            Param("concurrency", "So many at once.", Kind.INTEGER, flags=("--concurrency", "-c"),
                metavar="N"),
            Param("rate", "So many starts in the time that per says.", Kind.NUMBER, metavar="N"),
            Param("per", "What the rate is about.", Kind.DURATION, default="1s", metavar="TIME"),
            Param("burst", "So many starts at once after a pause.", Kind.INTEGER, metavar="N"),
        ),
        details="Commands that wait already are limited, too; running ones go on.",
        exists="may", answers="Limit", button="Set a limit",
    ),
    Action(
        "clear", LIMIT, "limit clear", "limits.clear_limit",
        "Remove a limit; commands that waited for it go on.", "the limit in {domain} is removed",
        (_OF_TYPE, _PER_KEY, _PER_SENDER), exists="may",
    ),
    # Schedules.
    Action(
        "add", SCHEDULE, "schedule add", "schedules.add_schedule",
        "Send a command again and again, by cron or every.", wording.next_run,
        (
            *_when(required=True),
            Param("disabled", "Send nothing before it is enabled.", Kind.FLAG),
            Param("replace", "Change one that exists.", Kind.FLAG),
        ),
        details="Any running worker sends it, whatever its domains; of a whole fleet, exactly one for "
        "each run.",
        exists="created", answers="ScheduleRecord", shape=_scheduled, button="Add a schedule",
    ),
    Action(
        "edit", SCHEDULE, "schedule edit", "schedules.edit_schedule",
        "Change a schedule; the fields that are not given stay.", wording.next_run,
        _when(required=False),
        details="cron replaces every, and every replaces cron.", answers="ScheduleRecord",
    ),
    Action(
        "trigger", SCHEDULE, "schedule trigger", "schedules.trigger_schedule",
        "Send a schedule's command now, beside its runs.", wording.triggered, answers="Sent",
            button="Send now",
    ),
    Action(
        "enable", SCHEDULE, "schedule enable", "schedules.enable_schedule",
        "Let a schedule send again, from its next run on.", wording.next_run, when=("disabled",),
    ),
    Action(
        "disable", SCHEDULE, "schedule disable", "schedules.disable_schedule",
        "Stop a schedule until it is enabled; it stays in the list.", wording.next_run,
        when=("enabled",),
    ),
    Action(
        "delete", SCHEDULE, "schedule delete", "schedules.delete_schedule",
        "Delete a schedule. The commands that it has sent stay.", wording.deleted, confirm="{name}",
            style="danger",
    ),
    # Breakers.
    Action(
        "open", BREAKER, "breaker open", "breakers.open_breaker",
        "Stop calling a target, in the whole fleet.", "nothing gets through to {target}",
        (Param("cooldown", "How long nothing gets through.", Kind.DURATION, default="5m",
            flags=("--for",), metavar="TIME"),),
        details="Its commands wait without using an attempt. When the time is over, some are let "
        "through to see whether the target answers.",
        exists="may", offered=False, button="Open the breaker",
    ),
    Action(
        "reset", BREAKER, "breaker reset", "breakers.reset_breaker",
        "Call a target again, because it is known to answer.", "{target} is called again",
        when=("OPEN", "HALF_OPEN"),
    ),
    # Batches.
    Action(
        "cancel", BATCH, "batch cancel", "batches.cancel_batch",
        "Cancel the commands of a batch that have not ended.", wording.canceled_batch,
        details="Waiting and parked ones end at once; running ones are asked to stop.",
        when=("open",), style="danger",
        button="Cancel the rest",
    ),
    # Processes.
    Action(
        "signal", PROCESS, "process signal", "processes.signal_process",
        "Signal to a process that something happened.", "signaled {signal} to process {process_id}",
        (
            Param("signal", "The signal's name.", required=True, positional=True, longest=63),
            Param("data", "Its data.", Kind.DOCUMENT,
                positional=True),
        ),
        when=("waits for a signal",),
    ),
    Action(
        "retry", PROCESS, "process retry", "processes.retry_process",
        "Let a process that waits for an operator try again.", "process {process_id} tries again",
        details="Parked commands go back to work, and a step that failed is repeated.",
        when=("stuck",), style="main",
    ),
    Action(
        "skip", PROCESS, "process skip", "processes.skip_compensation",
        "Let a process go on without the compensation that failed.",
            "process {process_id} goes on without it",
        reason="required", when=("compensation failed",),
    ),
    Action(
        "cancel", PROCESS, "process cancel", "processes.cancel_process",
        "Cancel a process; its steps are undone, one by one.",
        "process {process_id} is asked to undo its steps; a router does it",
        reason="required", reason_default="canceled by an operator", when=("forward",), style="danger",
    ),
    Action(
        "end", PROCESS, "process end", "process_ends.end_process",
        "End a process where it stands; nothing is undone.", wording.ended,
        details="For one whose record cannot be read, or whose declaration no program has any more: no "
        "router can cancel it. It is FAILED.",
        reason="required", answers="EndProcessResult", when=("cannot go on",), style="danger",
        button="End without undoing",
    ),
    # Workers.
    Action(
        "quiet", WORKER, "workers quiet", "worker_requests.quiet_workers",
        "Let workers claim nothing more until they are resumed; they finish what they hold.",
        wording.asked("be quiet"), _WORKERS,
        details="They stay alive and are listed as QUIET. It is over when they are started again; to "
        "hold a whole domain back, pause it.",
        meant=wording.which, when=("RUNNING",),
    ),
    Action(
        "resume", WORKER, "workers resume", "worker_requests.resume_workers",
        "Let quiet workers claim again.", wording.asked("go on"), _WORKERS,
        meant=wording.which, when=("QUIET",), style="main",
    ),
    Action(
        "stop", WORKER, "workers stop", "worker_requests.stop_workers",
        "Stop workers as SIGTERM does: what runs may finish in time, the rest goes back.",
        wording.asked("stop"), _WORKERS,
        details="A worker process that was stopped so is not started again by commandbus worker, "
        "which ends with code 0 when none is left; systemd and Kubernetes may start it again.",
        reason="required", reason_default="stopped on the command line", meant=wording.which,
        when=("RUNNING", "QUIET"), style="danger",
    ),
    Action(
        "concurrency", WORKER, "workers concurrency", "worker_requests.set_worker_concurrency",
        "Change how many handlers workers run at once; what runs goes on.",
        wording.asked("run {concurrency} at once"),
        (Param("concurrency", "How many at once.", Kind.INTEGER, required=True, positional=True,
            metavar="N", most=10_000), *_WORKERS),
        details="The configured number takes it back, and so does a restart. More than the pool of a "
        "worker allows is refused.",
        meant=wording.which, when=("RUNNING", "QUIET"), button="Resize",
    ),
    # The store.
    Action(
        "prune", STORE, "db prune", "retention.prune",
        "Forget commands that ended long ago, in small pieces, while work goes on.",
        lambda given, report: f"{text.plural(report.gone, 'command')} forgotten",
        tuple(
            Param(status, "Forget those that ended longer ago.", Kind.DURATION, metavar="TIME")
            for status in wording.RETAINED
        ),
        details="Parked commands are never forgotten, and the counts stay.",
        confirm="prune", answers="PruneReport", shape=_keep, preview="preview", meant=wording.old,
        counted=lambda report: report.gone, style="danger",
    ),
    Action(
        "erase", STORE, "db erase", "erasure.erase",
        "Erase what the commands of a data subject carried; ids, times and outcomes stay.",
        wording.erased,
        (
            Param("subject",
                "data.PATH=VALUE, header.PATH=VALUE or tag=VALUE; all that are given must hold.",
                Kind.WORDS, required=True, flags=("--subject", "-s"), metavar="WHERE=VALUE"),
            Param("domains", "Only in this domain; repeatable.", Kind.WORDS, flags=("--domain", "-d")),
            Param("cancel_waiting", "Cancel commands that wait or are parked, and erase them.",
                Kind.FLAG),
        ),
        details="Running commands are left, and waiting ones, too, unless cancel_waiting is given. "
        "It can be repeated for them.",
        reason="required", reason_default="erasure on request of the subject", confirm="erase",
        answers="EraseReport", shape=_subject, left=wording.not_erased, preview="dry_run",
        meant=wording.whose, counted=lambda report: report.erased, style="danger",
    ),
)  # fmt: skip


def actions_of(subject: Subject) -> list[Action]:
    return [action for action in ACTIONS if action.subject is subject]
