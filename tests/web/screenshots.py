"""Pictures of every page, light and dark, wide and on a phone: `make screenshots`."""

from __future__ import annotations

import asyncio
import base64
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from commandbus import CommandBus
from commandbus.domain import failure
from tests.web import saga, scene
from tests.web.browser import CHROMIUM, browser
from tests.web.people import OTTO
from tests.web.server import Served, served

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "screenshots"
SIZES = {"wide": (1_200, 800), "phone": (390, 844)}
HEIGHTS = {"wide": 800, "phone": 1_200}
"""Long pages are cut there."""
PAGES = {
    "overview": "/",
    "domains": "/domains",
    "domain": "/domains/orders",
    "commands": "/commands",
    "troubleshooting": "/troubleshooting",
    "batches": "/batches",
    "processes": "/processes",
    "schedules": "/schedules",
    "workers": "/workers",
    "breakers": "/breakers",
    "audit": "/audit",
    "actions": "/audit?view=actions",
    "system": "/system",
    "send": "/send?domain=orders&type=ship",
}


async def fill(bus: CommandBus) -> None:
    # Tracebacks in pictures name files of the project, wherever it lies.
    clean = failure._clean
    failure._clean = lambda text, *rest: clean(text.replace(f"{ROOT}/", ""), *rest)
    await scene.fill(bus)
    await saga.drive(bus)
    await saga.deliver(bus, "pen", "kite")
    await scene.present(bus, quiet=1)
    await bus.acting("olga").quiet_workers(["worker-2"], reason="a look at its memory")
    await bus.acting("olga").set_worker_concurrency(8, ["worker-1"])


async def some_load(bus: CommandBus, seconds: float) -> None:
    """Something for the charts to show."""
    end, n = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        n += 1
        cities = scene.CITIES[:4] if n % 3 else scene.CITIES
        await bus.send_many(
            scene.SendRequest("orders", "ship", {"order": n, "city": city})
            for city in cities * (2 + n % 4)
        )
        await scene.work(bus, ("orders",))
        await asyncio.sleep(0.4 + (n % 5) / 5)


def links(place: Served) -> dict[str, str]:
    """Pages whose address depends on what is there."""
    found = dict[str, str]()
    parked = place.run(place.bus.query_commands(status="IN_TROUBLESHOOTING_QUEUE", limit=1))[0]
    found["command"] = f"/commands/{parked.domain}/{parked.command_id}"
    batches = place.run(place.bus.list_batches(domain="orders"))
    found["batch"] = f"/batches/{batches[0].batch_id}"
    delivery = place.run(place.bus.list_processes(process_type=saga.Deliver.process_type))[0]
    found["process"] = f"/processes/{delivery.process_id}"
    groups = f"/commands/retry?domain={parked.domain}"
    return found | {"bulk": f"{groups}&command_type={parked.command_type}"}


async def nothing(bus: CommandBus) -> None:
    """The sign-in page shows no commands."""


def take(place: Served, opened: Any, folder: Path, pages: dict[str, str], only: set[str]) -> None:
    for theme in ("light", "dark"):
        for size, (width, height) in SIZES.items():
            context = opened.new_context(
                viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce"
            )
            page = context.new_page()
            if place.link:
                page.goto(place.link)
            for name, path in pages.items():
                if only and name not in only:
                    continue
                page.goto(place.url + path)
                length = page.evaluate("document.documentElement.scrollHeight")
                taken = page.screenshot(
                    full_page=True,
                    clip={"x": 0, "y": 0, "width": width, "height": min(length, HEIGHTS[size])},
                )
                (folder / f"{name}-{theme}-{size}.png").write_bytes(smaller(opened, taken))
            context.close()


SMALLER = """async (source) => {
  const image = new Image();
  image.src = source;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const pixels = context.getImageData(0, 0, image.width, image.height);
  const bytes = pixels.data;
  for (let i = 0; i < bytes.length; i++) bytes[i] = Math.round(bytes[i] / 5) * 5;
  context.putImageData(pixels, 0, 0);
  const blob = await canvas.convertToBlob({ type: "image/png" });
  const reader = new FileReader();
  return new Promise((done) => {
    reader.onload = () => done(reader.result);
    reader.readAsDataURL(blob);
  });
}"""


def smaller(opened: Any, picture: bytes) -> bytes:
    """The same picture in fewer shades, which compress better; nobody sees the difference."""
    page = opened.new_page()
    try:
        source = "data:image/png;base64," + base64.b64encode(picture).decode()
        made: str = page.evaluate(SMALLER, source)
        return base64.b64decode(made.partition(",")[2])
    finally:
        page.close()


def main(arguments: list[str]) -> int:
    if not CHROMIUM:
        print(
            "No chromium on the path; install it, or name it in COMMANDBUS_CHROMIUM.", file=sys.stderr
        )
        return 1
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/scene.db?synchronous=off"
        with served(store, fill, registry=scene.registry) as place, browser() as opened:
            page = opened.new_page()
            page.goto(place.link)
            place.run(some_load(place.bus, 20), 120)
            take(place, opened, FOLDER, PAGES | links(place), set(arguments))
        store = f"sqlite:///{folder}/accounts.db?synchronous=off"
        with served(store, nothing, accounts=[OTTO]) as place, browser() as opened:
            take(place, opened, FOLDER, {"sign-in": "/sign-in"}, set(arguments))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
