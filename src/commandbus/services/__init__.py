"""Periodic work: a service is a name and an op that says when it wants to run again. No loops here."""
