"""The SQL of the SQLite engine: numbered migrations, and queries with a name and a why each."""
