"""A small Django site for tests: its database, and the bus in the same file."""
