"""Saved views: filters of the list of commands under a name, for everyone who uses the dashboard."""

from __future__ import annotations

import msgspec

from commandbus.errors import InvalidArgumentError, NotFoundError
from commandbus.interfaces.web.stores import Stores
from commandbus.operations.actions import record_action
from commandbus.operations.scope import Scope
from commandbus.store.documents import Document, readable
from commandbus.store.op import Op

KIND = "dashboard.view"
VIEWS_MAX = 50
NAME_MAX = 40


class View(msgspec.Struct, frozen=True):
    name: str
    query: str
    """The filter."""
    actor: str


_decoder = msgspec.json.Decoder(View)


class Views:
    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    async def list(self) -> list[View]:
        bus = await self._stores.reading()
        return await bus.session.run(_list(bus.scope), read=True)

    async def save(self, name: str, query: str, actor: str) -> None:
        """Save a view, in place of another one with its name. Raises InvalidArgumentError."""
        if not name or len(name) > NAME_MAX or not query or len(query) > 1_000:
            raise InvalidArgumentError(
                f"A view needs a name of at most {NAME_MAX} characters and a filter."
            )
        bus = (await self._stores.acting()).acting(actor)
        await bus.session.run(_save(bus.scope, View(name, query, actor)))

    async def delete(self, name: str, actor: str) -> None:
        """Raises NotFoundError."""
        bus = (await self._stores.acting()).acting(actor)
        await bus.session.run(_delete(bus.scope, name))


def _list(scope: Scope) -> Op[list[View]]:
    documents = yield from scope.store.list_documents(KIND, limit=VIEWS_MAX)
    return readable(documents, lambda document: _decoder.decode(document.body))


def _save(scope: Scope, view: View) -> Op[None]:
    present = yield from scope.store.get_document(KIND, view.name)
    if present is None and len((yield from _list(scope))) >= VIEWS_MAX:
        raise InvalidArgumentError(f"At most {VIEWS_MAX} views are kept; delete one first.")
    body = msgspec.json.encode(view).decode()
    version = present.version if present else 0
    yield from scope.store.put_document(Document(KIND, view.name, version, "kept", None, body))
    yield from record_action(scope, "save_view", view.name)


def _delete(scope: Scope, name: str) -> Op[None]:
    if not (yield from scope.store.delete_document(KIND, name)):
        raise NotFoundError(f"There is no view {name!r}.")
    yield from record_action(scope, "delete_view", name)
