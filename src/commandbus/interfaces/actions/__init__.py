"""Operator actions: one table, from which the command line, the JSON API and the forms are made."""
