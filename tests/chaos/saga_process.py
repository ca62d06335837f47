"""The processes of the saga laboratory: workers and routers, in either runtime."""

import asyncio
import json
import sys
import time
from typing import Any

import msgspec

from commandbus import (
    BusinessRuleException,
    HandlerRegistry,
    PermanentCommandError,
    ProcessReplyRouter,
    SendRequest,
    Worker,
)
from commandbus.processes import Process, step
from commandbus.sync import SyncProcessReplyRouter, SyncWorker
from tests.chaos.process import open_patiently, open_patiently_async
from tests.os_processes.child import Config, metrics_of, say, stop_on_sigterm, worker_options

DOMAIN = "saga"
STEPS = ("reserve", "charge", "ship")
UNDOS = {"reserve": "release", "charge": "refund"}


class Order(msgspec.Struct):
    """What is to go wrong is in the state, so that the checker knows what to expect."""

    number: int
    fails: str | None = None
    parks: str | None = None
    done: list[str] = []


class PlaceOrder(Process[Order]):
    """Three steps; the first two can be undone."""

    @step
    def reserve(self, state: Order) -> SendRequest:
        return request("reserve", state)

    @reserve.compensation
    def release(self, state: Order) -> SendRequest:
        return request("release", state)

    @step
    def charge(self, state: Order) -> SendRequest:
        return request("charge", state)

    @charge.compensation
    def refund(self, state: Order) -> SendRequest:
        return request("refund", state)

    @step
    def ship(self, state: Order) -> SendRequest:
        return request("ship", state)

    @reserve.reply
    @charge.reply
    @ship.reply
    def note(self, state: Order, reply: Any) -> None:
        state.done.append(reply.command_type)


def request(name: str, state: Order) -> SendRequest:
    return SendRequest(
        DOMAIN, name, {"n": state.number, "fails": state.fails == name, "parks": state.parks == name}
    )


def end(command: Any) -> str:
    if command.data["fails"]:
        raise BusinessRuleException("NO", "the business says no")
    if command.data["parks"]:
        raise PermanentCommandError("BROKEN", "it cannot work")
    return "ok"


def registry_for(config: Config) -> HandlerRegistry:
    async def handle_async(command: Any, context: Any) -> str:
        await asyncio.sleep(config["pause"])
        return end(command)

    def handle(command: Any, context: Any) -> str:
        time.sleep(config["pause"])
        return end(command)

    registry = HandlerRegistry()
    for name in (*STEPS, *UNDOS.values()):
        registry.register(DOMAIN, name, handle_async if config["runtime"] == "asyncio" else handle)
    return registry


async def serve_async(config: Config) -> None:
    async with await open_patiently_async(config["url"]) as bus:
        served: Any
        if config["role"] == "worker":
            served = Worker(bus, DOMAIN, registry_for(config), **worker_options(config))
        else:
            served = ProcessReplyRouter(bus, PlaceOrder, **router_options(config))
        stop_on_sigterm(served, config, asyncio.get_running_loop())
        say("ready", name=served.name)
        await served.run()
        say("stopped", **metrics_of(served))


def serve_in_threads(config: Config) -> None:
    with open_patiently(config["url"]) as bus:
        served: Any
        if config["role"] == "worker":
            served = SyncWorker(bus, DOMAIN, registry_for(config), **worker_options(config))
        else:
            served = SyncProcessReplyRouter(bus, PlaceOrder, **router_options(config))
        stop_on_sigterm(served, config, None)
        say("ready", name=served.name)
        served.run()
        say("stopped", **metrics_of(served))


def router_options(config: Config) -> Config:
    return {"visibility_timeout": config["visibility_timeout"], "batch_size": config["batch_size"]}


def main() -> None:
    config: Config = json.loads(sys.argv[1])
    if config["runtime"] == "asyncio":
        asyncio.run(serve_async(config))
    else:
        serve_in_threads(config)


if __name__ == "__main__":
    main()
