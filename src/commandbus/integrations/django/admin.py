"""A read-only admin for the commands of the bus: a list with filters, and each with its trail.

Who may see it is Django's permission `commandbus.view_command`. Nothing can be changed here: operators
use the dashboard or the command line, which record who did what.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import msgspec
from django.contrib import admin, messages
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from commandbus.domain.audit import AuditEvent
from commandbus.domain.command import CommandRecord
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.page import Page
from commandbus.errors import CommandBusError
from commandbus.integrations.django import api
from commandbus.integrations.django.backend import CommandBusBackend
from commandbus.integrations.django.models import Command
from commandbus.interfaces.redaction import Redaction

PAGE = 50
FILTERS = ("backend", "domain", "command_type", "status", "tag")
LIST, DETAIL = "commandbus_command_changelist", "commandbus_command_change"


@admin.register(Command)
class CommandAdmin(admin.ModelAdmin):  # type: ignore[misc]
    """The commands of the bus, to look at."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_urls(self) -> list[Any]:
        guard = self.admin_site.admin_view
        return [
            path("", guard(self.changelist_view), name=LIST),
            path("<str:domain>/<uuid:command_id>/", guard(self.detail_view), name=DETAIL),
        ]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The newest commands that meet the filters; an id leads to its command."""
        self._check(request)
        asked: Any = request.GET
        given = {name: value for name in FILTERS if (value := asked.get(name, "").strip())}
        backend = _backend(given.get("backend"))
        page, domains = Page[CommandRecord](()), Page[str](())
        try:
            wanted = asked.get("q", "").strip()
            if wanted and (record := backend.bus.get_command(wanted)) is not None:
                place = self._place(record.domain, record.command_id, given)
                return HttpResponseRedirect(place)
            if wanted:
                messages.warning(request, f"There is no command {wanted}.")
            conditions: Any = {name: given[name] for name in FILTERS[1:] if name in given}
            after = asked.get("after") or None
            page = backend.bus.query_commands(**conditions, after=after, limit=PAGE)
            domains = backend.bus.list_domains()
        except CommandBusError as error:
            messages.error(request, str(error))
        rows = [(self._place(one.domain, one.command_id, given), one) for one in page]
        following = f"?{urlencode(given | {'after': page.next})}" if page.next else None
        return self._page(
            request,
            "change_list",
            title="Commands",
            rows=rows,
            given=given,
            following=following,
            domains=domains,
            statuses=list(CommandStatus),
            backends=_backends(),
        )

    def detail_view(self, request: HttpRequest, domain: str, command_id: UUID) -> HttpResponse:
        """One command: what was sent, how it ended, and all that happened to it."""
        self._check(request)
        asked: Any = request.GET
        bus, hidden = _backend(asked.get("backend")).bus, Redaction()
        try:
            found = bus.get_command(command_id, domain=domain)
            trail = bus.get_audit_trail(command_id, domain=domain)
        except CommandBusError as error:
            raise Http404(str(error)) from error
        if found is None:
            raise Http404(f"There is no command {command_id} in {domain}.")
        record = hidden.record(found)
        return self._page(
            request,
            "detail",
            title=f"{record.domain}.{record.command_type}",
            record=record,
            fields=[(name.replace("_", " "), _shown(value)) for name, value in _fields(record)],
            trail=[(event, _who(event), _json(event.details)) for event in map(hidden.event, trail)],
        )

    def _check(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    def _place(self, domain: str, command_id: UUID, given: dict[str, str]) -> str:
        where = reverse(f"{self.admin_site.name}:{DETAIL}", args=[domain, command_id])
        return f"{where}?{urlencode({'backend': given['backend']})}" if "backend" in given else where

    def _page(self, request: HttpRequest, template: str, **context: Any) -> HttpResponse:
        setattr(request, "current_app", self.admin_site.name)  # noqa: B010 - as Django's own views do
        shown = {**self.admin_site.each_context(request), "opts": self.opts, **context}
        return TemplateResponse(request, f"admin/commandbus/command/{template}.html", shown)


def _backends() -> list[str]:
    """The backends that are a command bus, by their aliases."""
    found = (alias for alias in api.task_backends.settings)
    return [alias for alias in found if isinstance(api.task_backends[alias], CommandBusBackend)]


def _backend(alias: str | None) -> CommandBusBackend:
    known = _backends()
    if not known:
        raise ImproperlyConfigured("No backend in TASKS is a CommandBusBackend.")
    if alias is not None and alias not in known:
        raise Http404(f"TASKS has no command bus {alias!r}.")
    backend: CommandBusBackend = api.task_backends[alias or known[0]]
    return backend


def _fields(record: CommandRecord) -> list[tuple[str, Any]]:
    """What a record says, without what it does not have."""
    values = ((name, getattr(record, name)) for name in record.__struct_fields__)
    return [(name, value) for name, value in values if value not in (None, (), {})]


def _who(event: AuditEvent) -> str:
    return str(event.details.get("actor") or event.details.get("worker") or "")


def _shown(value: Any) -> str:
    return _json(value) if isinstance(value, dict | list | msgspec.Struct) else str(value)


def _json(value: Any) -> str:
    plain = msgspec.to_builtins(value, str_keys=True)
    return json.dumps(plain, indent=2, ensure_ascii=False) if plain else ""
