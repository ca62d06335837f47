"""A shop with Flask: the bus for threads, and a worker beside the web server.

pip install flask && python examples/flask_shop.py            # plays one order, then ends
flask --app examples/flask_shop run                           # a real server …
commandbus worker examples.flask_shop:shop                    # … and its worker
"""

from decimal import Decimal

from flask import Flask, jsonify

from commandbus import HandlerRegistry
from commandbus.errors import CommandNotFoundError, QueueFull
from commandbus.sync import SyncCommandBus, SyncWorker

shop = HandlerRegistry("shop")
bus = SyncCommandBus("sqlite:///flask_shop.db").open()
app = Flask(__name__)


@shop.command
def charge(order: int, amount: Decimal) -> str:
    return f"order {order}: {amount} EUR charged"


@app.post("/orders/<int:order>")
def place(order: int):
    # Repeating the request is safe: the same key is the same command.
    sent = bus.send(charge(order=order, amount=Decimal("9.50")), unique_key=f"order-{order}")
    return jsonify(id=str(sent.command_id)), 202


@app.get("/orders/<uuid:command_id>")
def look(command_id):
    record = bus.wait(command_id, timeout=5)
    return jsonify(status=record.status, result=record.result)


@app.errorhandler(QueueFull)
def full(error: QueueFull):
    return jsonify(error=str(error)), 429, {"Retry-After": str(int(error.retry_after) + 1)}


@app.errorhandler(CommandNotFoundError)
def unknown(error: CommandNotFoundError):
    return jsonify(error=str(error)), 404


def main() -> None:
    client = app.test_client()
    with SyncWorker(bus, shop):
        placed = client.post("/orders/7").get_json()
        seen = client.get(f"/orders/{placed['id']}").get_json()
    print(seen)
    assert seen == {"status": "COMPLETED", "result": "order 7: 9.50 EUR charged"}
    bus.close()


if __name__ == "__main__":
    main()
