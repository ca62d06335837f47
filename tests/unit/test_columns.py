"""The list of a command's columns, and the types and schemas that follow it."""

from __future__ import annotations

import re

from commandbus.domain.command import Command, CommandRecord, SendRequest
from commandbus.engines.postgres.insert_query import COMMANDS
from commandbus.interfaces.web.schemas import SendBody
from commandbus.store.columns import among
from commandbus.store.records import CLAIMED, OPTIONAL, Claimed, NewCommand
from commandbus.store.sql_files import read_text

NAMES = [column.name for column in OPTIONAL]


def test_optional_columns_stand_together_in_their_types() -> None:
    """Rows are made and read by position."""
    assert list(NewCommand.__struct_fields__)[-len(OPTIONAL) :] == NAMES
    claimed = list(Claimed.__struct_fields__)
    behind = claimed[claimed.index("chain") + 1 :]
    assert behind[: len(CLAIMED)] == [column.name for column in CLAIMED]
    assert {"causation_id", "reply_to"} <= {c.name for c in among(CLAIMED, Command)}


def test_every_column_is_an_option_of_send_and_a_field_of_records() -> None:
    assert set(NAMES) <= set(SendRequest.__struct_fields__) & set(CommandRecord.__struct_fields__)


def test_the_api_takes_the_columns_that_are_checked_texts() -> None:
    checked = {c.name: c.meaning for c in OPTIONAL if c.kind == "text" and c.check is not None}
    assert all(checked.values()), "the API's document says what a column means"
    assert checked.keys() <= set(SendBody.__struct_fields__)
    body = SendBody("orders", "ship", {"n": 1}, group_key="a")
    assert (body.domain, body.group_key, body.reply_to) == ("orders", "a", None)  # type: ignore[attr-defined]


def test_the_schemas_have_the_columns() -> None:
    for package, table in (
        ("commandbus.engines.postgres.sql", "commandbus.command"),
        ("commandbus.engines.sqlite.sql", "commandbus_command"),
    ):
        text = read_text(package, "0001_schema.sql")
        found = re.search(rf"create table {table} \((.*?)\n\);", text, re.DOTALL)
        assert found is not None
        columns = [line.split()[0] for line in found[1].strip().splitlines()]
        assert set(NAMES) <= set(columns), package


def test_the_function_for_single_sends_takes_the_columns_in_their_order() -> None:
    text = read_text("commandbus.engines.postgres.sql", "0001_schema.sql")
    found = re.search(r"create function commandbus\.add\((.*?)out seq", text, re.DOTALL)
    assert found is not None
    arguments = [argument.split()[0] for argument in found[1].split(",") if argument.strip()]
    assert arguments == [*COMMANDS.names, "origin", "announce"]
