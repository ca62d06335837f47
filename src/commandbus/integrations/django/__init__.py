"""A backend for Django's tasks, the commands that carry them out and show them, checks and an admin.

`BACKEND = "commandbus.integrations.django.backend.CommandBusBackend"`; this package among
INSTALLED_APPS brings `manage.py commandbus_worker`.
"""
