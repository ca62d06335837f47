"""Database roles: what a program that only sends, works or looks may do, and nothing more."""

from __future__ import annotations

import re

from commandbus.engines.postgres.location import check_schema
from commandbus.engines.postgres.statements import PACKAGE, in_schema
from commandbus.store.sql_files import read_text

ROLES = ("sender", "worker", "viewer", "admin")


def role_named(role: str, schema: str) -> str:
    """Roles belong to the whole server, so each bus has its own: commandbus_sender, …"""
    return f"{schema}_{role}"


def roles_sql(schema: str) -> str:
    """The statements that create the roles of a bus and grant them what they need. They are for the
    owner of the tables, and need the right to create roles."""
    name = check_schema(schema)
    words = {role: role_named(role, name) for role in ROLES}
    words |= {"schema": f'"{name}"', "prefix": f"'{name}'"}
    text = in_schema(read_text(PACKAGE, "roles.sql"), name)
    return re.sub(r"(?<!:):(\w+)", lambda found: words[found[1]], text)
