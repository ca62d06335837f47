"""`manage.py commandbus_dashboard`: the dashboard of a backend's bus, beside the site."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from commandbus.errors import CommandBusError
from commandbus.integrations.django import api
from commandbus.integrations.django.handling import registry_for
from commandbus.settings import resolve_url


class Command(BaseCommand):  # type: ignore[misc]
    help = "Serve the dashboard of a backend's bus on a port of its own, until a signal comes."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", default="default", help="An alias in TASKS.")
        parser.add_argument("--host", default="127.0.0.1", help="Where to listen.")
        parser.add_argument("--port", type=int, default=8_080, help="0 means any free port.")
        parser.add_argument("--accounts", type=Path, help="Who may sign in: a TOML file of accounts.")
        parser.add_argument("--root-path", default="", help="The path prefix that a proxy removes.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            from commandbus.interfaces.web import create_dashboard
            from commandbus.interfaces.web.local import OneTimeLinks
            from commandbus.interfaces.web.serving import bind, check_host, create_server, serve
        except ImportError as error:
            raise CommandError(
                f"The dashboard needs {error.name}; install it with "
                "`pip install 'durable-commandbus[web]'`."
            ) from error
        accounts, host = options["accounts"], options["host"]
        backend = api.task_backends[options["backend"]]

        def announce(token: str) -> None:
            self.stdout.write(f"dashboard at {address}/sign-in?token={token}")

        try:
            check_host(host, has_accounts=accounts is not None)
            listener = bind(host, options["port"])
            shown = f"[{host}]" if ":" in host else host
            address = f"http://{shown}:{listener.getsockname()[1]}"
            board = create_dashboard(
                resolve_url(backend.url),
                accounts=accounts or (),
                links=None if accounts else OneTimeLinks(announce),
                registry=registry_for(options["backend"]),
            )
        except CommandBusError as error:
            raise CommandError(str(error)) from error
        if accounts:
            self.stdout.write(f"dashboard at {address}/")
        with suppress(KeyboardInterrupt):  # the ordinary end
            asyncio.run(serve(create_server(board, root_path=options["root_path"]), listener))
