"""The admin: orders, what became of their tasks, and an action that ships again."""

from django.contrib import admin

from shop.models import Order
from shop.tasks import ship


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ("id", "article", "state", "task_status")
    actions = ("ship_again",)

    @admin.display(description="task")
    def task_status(self, order: Order) -> str:
        return "–" if order.task_id is None else str(ship.get_result(str(order.task_id)).status)

    @admin.action(description="Ship again")
    def ship_again(self, request, orders) -> None:
        for order in orders:
            ship.enqueue(order.pk)
