"""A shop with Django: models, tasks and admin in one database.

    python examples/django_shop/play.py                                    # plays one order, then ends
    python examples/django_shop/manage.py runserver                        # a real site …
    python examples/django_shop/manage.py commandbus_worker                # … its worker …
    python examples/django_shop/manage.py commandbus_dashboard             # … and the dashboard

An order and its task are in one transaction: both commit, or neither. So are what a task does and its
outcome. The admin lists all commands, with their trails.
"""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
django.setup()

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import transaction
from django.test import Client
from shop.models import Order
from shop.tasks import ship

from commandbus.integrations.django.api import task_backends
from commandbus.integrations.django.handling import registry_for
from commandbus.testing import drain


def main() -> None:
    call_command("migrate", "--run-syncdb", verbosity=0)
    with transaction.atomic():
        order = Order.objects.create(article="pen")
        order.task_id = ship.enqueue(order.pk).id
        order.save()
    # In this program instead of a worker: python manage.py commandbus_worker
    drain(task_backends["default"].bus, registry_for("default"))
    order.refresh_from_db()

    user, _ = get_user_model().objects.get_or_create(username="ann", is_staff=True, is_superuser=True)
    client = Client()
    client.force_login(user)
    page = client.get("/admin/shop/order/").content.decode()
    command = client.get(f"/admin/commandbus/command/default/{order.task_id}/").content.decode()
    print(order, "· the admin shows its task:", "SUCCESSFUL" in page and "COMPLETED" in command)
    assert order.state == "shipped"
    assert "SUCCESSFUL" in page
    assert "COMPLETED" in command


if __name__ == "__main__":
    main()
