"""Looking after a PostgreSQL database: creating the schema, checking it, diagnosing it."""

from __future__ import annotations

from commandbus.engines.postgres import location, schema
from commandbus.engines.postgres.doctor import doctor
from commandbus.engines.postgres.roles import roles_sql
from commandbus.store.administration import Finding


class PostgresAdministration:
    """The administrator's view of one database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._place = location.parse(url)

    def upgrade(self) -> str:
        schema.upgrade(self._url)
        return self.verify()

    def verify(self) -> str:
        return str(schema.verify(self._url)[-1])

    def sql(self) -> str:
        return schema.migration_sql(self._place.schema)

    def roles(self) -> str:
        return roles_sql(self._place.schema)

    def doctor(self) -> list[Finding]:
        return doctor(self._url)
