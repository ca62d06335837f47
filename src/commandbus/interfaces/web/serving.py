"""The dashboard by itself, on a port. Without accounts it binds to this machine and nothing else."""

from __future__ import annotations

import errno
import socket
from typing import Any

from commandbus.errors import ConfigurationError
from commandbus.interfaces.web.auth import is_loopback


def check_host(host: str, *, has_accounts: bool) -> None:
    """Raises ConfigurationError for an address that others can reach, unless they have to log in."""
    if not has_accounts and not is_loopback(host):
        raise ConfigurationError(
            f"The dashboard does not serve {host} without accounts: anybody who reaches it could read "
            "payloads and cancel commands. Use `commandbus dashboard --accounts FILE`, or leave --host "
            "at 127.0.0.1."
        )


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, or ConfigurationError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = str(error.strerror).partition(" (while")[0]  # Python repeats the address
        hint = "; choose another --port" if error.errno == errno.EADDRINUSE else ""
        raise ConfigurationError(
            f"The dashboard cannot listen at {host}:{port}: {why}{hint}."
        ) from None


def create_server(app: Any, *, root_path: str = "") -> Any:
    """A server for the app; open streams do not hold its end up."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            root_path=root_path,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
    )
