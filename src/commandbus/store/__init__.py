"""The one storage port: what an engine must do, and how operations talk to it."""
