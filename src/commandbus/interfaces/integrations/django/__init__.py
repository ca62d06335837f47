"""A backend for Django's tasks, and the command that carries them out.

`BACKEND = "commandbus.interfaces.integrations.django.backend.CommandBusBackend"`; this package among
INSTALLED_APPS brings `manage.py commandbus_worker`.
"""
