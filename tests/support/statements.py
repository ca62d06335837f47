"""The statements of the PostgreSQL engine that are made of parts, by name."""

from commandbus.engines.postgres.claim_query import claim_query
from commandbus.engines.postgres.insert_query import insert_query, limited_insert, single_insert
from commandbus.engines.postgres.processes import add_query, change_query, list_query
from commandbus.engines.postgres.settle_query import settle_query


def made(schema: str = "commandbus") -> dict[str, str]:
    return {
        "claim": claim_query(schema, False, "chains").sql,
        "claim_fresh": claim_query(schema, True, "chains").sql,
        "claim_plain": claim_query(schema, False, "plain").sql,
        "claim_fresh_plain": claim_query(schema, True, "plain").sql,
        "claim_apart": claim_query(schema, False, "each").sql,
        "claim_fresh_apart": claim_query(schema, True, "each").sql,
        "settle": settle_query(schema).sql,
        "settle_ends": settle_query(schema, "ends").sql,
        "settle_receipts": settle_query(schema, "receipts").sql,
        "settle_plain": settle_query(schema, "plain").sql,
        "insert_commands": insert_query(schema).sql,
        "insert_command": single_insert(schema),
        "limited insert_commands": limited_insert(schema).sql,
        "add_processes": add_query(schema).sql,
        "put_processes": change_query(schema).sql,
        "processes": list_query(schema, None).sql,
        "processes ended": list_query(schema, True).sql,
        "processes not ended": list_query(schema, False).sql,
    }
