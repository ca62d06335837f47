"""The SQL of the PostgreSQL engine: numbered migrations, and queries with a name and a why each.

`commandbus.` stands for the schema that the bus was opened with, and is replaced by it.
"""
