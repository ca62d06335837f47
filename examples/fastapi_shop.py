"""A shop with FastAPI and SQLAlchemy: an order and its command in one transaction.

    python examples/fastapi_shop.py                               # plays two orders, then ends
    uvicorn examples.fastapi_shop:app                             # a real server, with a worker inside

The order and its command are in one database, so an order without its command, or a command without its
order, cannot exist: both commit, or neither.
"""

import asyncio
from collections.abc import Iterator
from typing import Annotated

import httpx
from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from commandbus import HandlerRegistry
from commandbus.integrations.fastapi import bus_lifespan, install_error_handlers
from commandbus.sync import SyncCommandBus

STORE = "sqlite:///fastapi_shop.db"
engine = create_engine(STORE)
bus = SyncCommandBus(STORE).open()
shop = HandlerRegistry("shop")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    article: Mapped[str]
    state: Mapped[str] = mapped_column(default="placed")


Base.metadata.create_all(engine)


@shop.command
def ship(order: int) -> str:
    with Session(engine) as session, session.begin():
        found = session.get_one(Order, order)
        found.state = "shipped"
        return found.article


def transaction() -> Iterator[Session]:
    with Session(engine) as session, session.begin():
        yield session


Transaction = Annotated[Session, Depends(transaction)]
app = FastAPI(lifespan=bus_lifespan(STORE, registry=shop))
install_error_handlers(app)


@app.post("/orders", status_code=202)
def place(article: str, session: Transaction) -> dict:
    order = Order(article=article)
    session.add(order)
    session.flush()
    sent = bus.within(session).send(ship(order=order.id))
    if article == "nothing":
        raise HTTPException(422, "there is nothing to ship")  # the order and its command are undone
    return {"order": order.id, "command": str(sent.command_id)}


@app.get("/orders/{number}")
def look(number: int, session: Transaction) -> dict:
    order = session.get(Order, number)
    if order is None:
        raise HTTPException(404, "no such order")
    return {"article": order.article, "state": order.state}


async def main() -> None:
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            placed = (await client.post("/orders?article=pen")).json()
            await asyncio.to_thread(bus.wait, placed["command"], timeout=10)
            seen = (await client.get(f"/orders/{placed['order']}")).json()
            refused = await client.post("/orders?article=nothing")
    print(seen, "and nothing was sent for", refused.status_code)
    assert seen == {"article": "pen", "state": "shipped"}
    assert bus.stats("shop").depth == 0
    bus.close()
    engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
