"""Tests of a Django site, which Django's own runner carries out in its test database."""

from django.contrib import admin
from django.contrib.auth.models import Group, Permission, User
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from django.urls import path

from commandbus import HandlerRegistry, PermanentCommandError
from commandbus.integrations.django.api import task_backends
from commandbus.integrations.django.handling import registry_for
from commandbus.sync import SyncHandlerContext
from commandbus.testing import drain

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

done = []
urlpatterns = [path("admin/", admin.site.urls)]


@task()
def ship(order):
    done.append(order)


@task()
def name_group(name, fail=False):
    Group.objects.create(name=name)
    if fail:
        raise PermanentCommandError("NO")
    return name


payments = HandlerRegistry("payments")


@payments.command(transactional=True)
def charge(context: SyncHandlerContext, name: str, fail: bool = False) -> int:
    context.send("payments", "receipt", {"name": name})
    group = Group.objects.create(name=name)
    if fail:
        raise PermanentCommandError("NO")
    return group.pk


@payments.command
def receipt(name: str) -> int:
    return Group.objects.filter(name=name).count()


def run_all():
    return drain(task_backends["default"].bus, registry_for("default"))


class CheckEffects:
    def tearDown(self):
        if not connection.in_atomic_block:
            task_backends["default"].bus.purge()

    def test_effects_and_outcome_of_a_task_are_one(self):
        kept, undone = name_group.enqueue("kept"), name_group.enqueue("undone", fail=True)
        run_all()
        kept.refresh()
        undone.refresh()
        assert (kept.status, kept.return_value, undone.status) == ("SUCCESSFUL", "kept", "FAILED")
        assert [group.name for group in Group.objects.all()] == ["kept"]

    def test_effects_follow_ups_and_outcome_of_a_command_are_one(self):
        backend = task_backends["default"]
        kept = backend.send(charge("kept"))
        backend.send(charge("undone", fail=True))
        records = run_all()
        found = sorted((record.command_type, str(record.status)) for record in records)
        parked = "IN_TROUBLESHOOTING_QUEUE"
        assert found == [("charge", "COMPLETED"), ("charge", parked), ("receipt", "COMPLETED")]
        assert backend.bus.get_command(kept).result == Group.objects.get().pk


class EffectsTest(CheckEffects, TransactionTestCase):
    pass


class TransactionOfTheTest(CheckEffects, TestCase):
    """A test whose transaction never commits."""

    def test_calls_of_the_bus_are_part_of_it(self):
        bus = task_backends["default"].bus
        sent = bus.send(receipt("x"))
        assert bus.get_command(sent).status == "PENDING"
        bus.acting("ann").cancel(sent)
        assert bus.get_command(sent).status == "CANCELED"


class AdminTest(TestCase):
    """The admin shows commands to those who may see them, and changes nothing."""

    def setUp(self):
        self.user = User.objects.create(username="ann", is_staff=True)
        self.client.force_login(self.user)
        self.sent = task_backends["default"].bus.send(
            "mail", "greet", {"name": "<b>", "password": "swordfish"}
        )
        self.place = f"/admin/commandbus/command/mail/{self.sent.command_id}/"

    def allow(self):
        self.user.user_permissions.add(Permission.objects.get(codename="view_command"))

    def test_a_permission_is_needed(self):
        for place in ("/admin/commandbus/command/", self.place):
            assert self.client.get(place).status_code == 403
        self.client.logout()
        assert self.client.get(self.place).status_code == 302

    def test_commands_are_listed_and_filtered(self):
        self.allow()
        assert "/admin/commandbus/command/" in self.client.get("/admin/").content.decode()
        ship.enqueue(1)
        found = self.client.get("/admin/commandbus/command/").content.decode()
        assert ("test_shop.ship" in found, self.place in found) == (True, True)
        for query in ("domain=default", "status=COMPLETED", "command_type=other", "tag=t"):
            page = self.client.get(f"/admin/commandbus/command/?{query}").content.decode()
            assert self.place not in page
        found = self.client.get("/admin/commandbus/command/?status=nonsense").content.decode()
        assert "Unknown status" in found
        moved = self.client.get(f"/admin/commandbus/command/?q={self.sent.command_id}")
        assert moved.headers["Location"] == self.place

    def test_a_command_is_shown_with_its_trail_and_without_secrets(self):
        self.allow()
        task_backends["default"].bus.acting("ann").cancel(self.sent, reason="not needed")
        page = self.client.get(self.place).content.decode()
        assert ("SENT" in page, "CANCELED" in page, "not needed" in page) == (True, True, True)
        assert ("swordfish" in page, "<b>" in page, "&lt;b&gt;" in page) == (False, False, True)
        assert self.client.get(self.place.replace("mail", "other")).status_code == 404

    def test_nothing_can_be_changed(self):
        self.allow()
        assert self.client.get("/admin/commandbus/command/add/").status_code == 404
        assert self.client.get(f"{self.place}delete/").status_code == 404
        page = self.client.get("/admin/commandbus/command/").content.decode()
        assert 'method="post"' not in page.split('id="content"')[1]


class NothingIsLeft(TransactionTestCase):
    def test_a_test_leaves_nothing_behind(self):
        assert list(task_backends["default"].bus.query_commands()) == []


class ShopTest(TransactionTestCase):
    def tearDown(self):
        task_backends["default"].bus.purge()

    def test_a_task_that_is_left_over(self):
        assert ship.enqueue(0).status == "READY"

    def test_tasks_stay_in_the_test_database(self):
        ship.enqueue(1)
        with transaction.atomic():
            ship.enqueue(2)
        with transaction.atomic():
            ship.enqueue(3)
            transaction.set_rollback(True)
        drain(task_backends["default"].bus, registry_for("default"))
        assert done == [1, 2]
