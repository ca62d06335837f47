"""Tasks, as Django has them; Command Bus carries them out."""

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

from shop.models import Order


@task
def ship(order_id: int) -> str:
    order = Order.objects.get(pk=order_id)
    order.state = "shipped"
    order.save()
    return order.article
