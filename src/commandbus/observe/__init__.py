"""Metrics and their exposition. Code here observes and never decides."""
