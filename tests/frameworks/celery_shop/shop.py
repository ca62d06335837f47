"""An application of 14 tasks, written for Celery. The test runs it as it stands on Celery, and with
nothing but its imports and its broker changed on Command Bus."""

import os
import time
from decimal import Decimal
from pathlib import Path

from celery import Celery, Task, chain, chord, group, shared_task
from celery.exceptions import SoftTimeLimitExceeded
from celery.schedules import crontab
from celery.utils.log import get_task_logger

logger = get_task_logger(__name__)
folder = Path(os.environ["SHOP_FOLDER"])
app = Celery("shop")
app.config_from_object("shop_settings")
app.conf.timezone = "Europe/Berlin"
app.conf.task_routes = {"shop.audit": {"queue": "audit"}}
app.conf.beat_schedule = {
    "heartbeat": {"task": "shop.heartbeat", "schedule": 1.0, "args": ("beat",)},
    "nightly": {"task": "shop.total", "schedule": crontab(hour=2, minute=30), "args": ([1, 2],)},
}


class PaymentDeclined(Exception):
    pass


class Audited(Task):
    def on_failure(self, exc, task_id, args, kwargs, einfo):
        note(f"failed {type(exc).__name__} {args[0]} {'PaymentDeclined' in einfo.traceback}")


class InContext(Task):
    """As the documentation of Flask shows it."""

    def __call__(self, *args, **kwargs):
        note("context")
        return self.run(*args, **kwargs)


class Double(Task):
    name = "shop.double"

    def run(self, x):
        return 2 * x


double = app.register_task(Double())


def note(line):
    with (folder / "notes.txt").open("a") as file:
        file.write(f"{line}\n")


@app.task
def add(x, y):
    return x + y


@shared_task
def multiply(x, y=2):
    return x * y


@app.task(name="shop.total")
def total(numbers):
    return sum(numbers)


@app.task(bind=True, base=InContext, max_retries=5)
def fetch_price(self, sku):
    if self.request.retries < 2:
        raise self.retry(exc=ConnectionError("the price service is busy"), countdown=0)
    return {"sku": sku, "retries": self.request.retries}


@app.task(
    bind=True, autoretry_for=(ConnectionError,), retry_backoff=True, retry_jitter=False, max_retries=1
)
def upload(self, name):
    note(f"upload {name} {self.request.retries}")
    raise ConnectionError("the store is away")


@app.task(ignore_result=True)
def send_receipt(order_id, *, email):
    note(f"receipt {order_id} {email}")
    return "not kept"


@app.task(soft_time_limit=1)
def render_report(pages):
    try:
        for _ in range(1000):
            time.sleep(0.01)
    except SoftTimeLimitExceeded:
        return {"pages": pages, "partial": True}
    return {"pages": pages, "partial": False}


@app.task(time_limit=2)
def import_catalog(path):
    for _ in range(500):
        time.sleep(0.01)
    return path


@app.task(base=Audited)
def charge(order_id: int, amount: Decimal):
    if order_id == 13:
        raise PaymentDeclined("card 13 is blocked")
    return f"{order_id}: {amount:.2f}"


@app.task
def alarm(request, exc, traceback):
    note(f"alarm {type(exc).__name__} {request.args[0]}")


@app.task(rate_limit="100/s")
def audit(result):
    note(f"audit {result}")


@app.task
def heartbeat(word):
    note(f"heartbeat {word}")


@app.task(bind=True)
def checkout(self, orders):
    """Sends a chord by itself; its caller finds the total in the notes."""
    chord([add.s(order, 1) for order in orders])(audit.s().set(queue="audit"))
    return self.request.delivery_info["routing_key"]


def play():
    """Everything that the application does, and what its caller sees of it."""
    seen = {}

    def see(name, result):
        try:
            found = [result.get(timeout=30)]
        except Exception as error:  # what Celery gives to the caller of get()
            found = [type(error).__name__, str(error)]
        seen[name] = [getattr(result, "state", "a group"), *found]

    sent = {
        "delay": add.delay(1, 2),
        "keywords": add.apply_async(kwargs={"x": 3, "y": 4}),
        "shared": multiply.delay(21),
        "decimal": charge.delay(7, Decimal("9.5")),
        "declined": charge.delay(13, Decimal("1.00")),
        "countdown": add.apply_async((5, 5), countdown=0.5),
        "retried": fetch_price.delay("apple"),
        "exhausted": upload.delay("a.csv"),
        "ignored": send_receipt.delay(7, email="ann@example.org"),
        "chain": (add.s(1, 1) | add.s(10) | multiply.s(3)).apply_async(),
        "immutable": chain(add.s(1, 1), add.si(2, 3), multiply.s()).apply_async(),
        "broken chain": chain(upload.si("b.csv"), multiply.s()).apply_async(),
        "group": group(add.s(n, n) for n in range(4)).apply_async(),
        "chord": chord([add.s(n, n) for n in range(5)])(total.s()),
        "group | task": (group(add.s(1, 1), multiply.s(5, 5)) | total.s()).apply_async(),
        "chain with a group": chain(
            add.s(1, 1), group(add.s(1), multiply.s(10)), total.s(), multiply.s(2)
        ).apply_async(),
        "chord of chains": chord([add.s(1, 1) | multiply.s(4), add.s(2, 2)])(total.s()),
        "checkout": checkout.delay([1, 2, 3]),
        "link": add.apply_async((40, 2), link=audit.s().set(queue="audit")),
        "class": double.delay(21),
        "partial chain": chain(add.s(1), add.s(5)).apply_async((9,)),
        "errback": charge.apply_async((13, Decimal("2.00")), link_error=alarm.s()),
        "group in a group": group(add.s(1, 1), group(add.s(2, 2), add.s(3, 3))).apply_async(),
        "group after a group": chain(
            group(add.s(1, 1), add.s(2, 2)), group(total.s(), total.s())
        ).apply_async(countdown=0),
        "soft limit": render_report.delay(9),
        "hard limit": import_catalog.delay("catalog.csv"),
    }
    for name, result in sent.items():
        see(name, result)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not is_quiet():
        time.sleep(0.05)
    notes = (folder / "notes.txt").read_text().splitlines()
    return {
        "results": seen,
        "notes": sorted(set(notes)),
        "texts": all(str(result) == result.id for name, result in sent.items() if "group" not in name),
        "uploads": sum("upload a" in n for n in notes),
    }


def is_quiet():
    """What nobody waits for has happened, too."""
    notes = (folder / "notes.txt").read_text().splitlines()
    expected = {"audit 42", "audit [2, 3, 4]", "heartbeat beat", "alarm PaymentDeclined 13"}
    return expected <= set(notes)
