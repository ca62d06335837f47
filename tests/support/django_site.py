"""Django, set up once per process with the site of tests/frameworks/shop."""

from __future__ import annotations

import os

import pytest


def set_up_django() -> None:
    """Skips the test, and says why, where Django or its tasks are not installed."""
    pytest.importorskip("django", reason="Django is not installed: its integration is not tested here")
    try:
        import django.tasks
    except ImportError:
        reason = "neither Django 6 nor django-tasks is installed: django.tasks is not tested here"
        pytest.importorskip("django_tasks", reason=reason)
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.frameworks.shop.settings")
    django.setup()
