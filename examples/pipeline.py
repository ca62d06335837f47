"""A data pipeline with fan-out: list the files, read each of them at the same time, then one report.

    python examples/pipeline.py

Every part is a durable command of its own: a part that fails is retried alone, and the report is made
exactly once, after the last of them.
"""

import asyncio
import random

from commandbus import CommandBus, HandlerContext, HandlerRegistry, RetryPolicy, Worker

FILES = {f"sales-{day:02}.csv": random.Random(day).sample(range(1, 100), 20) for day in range(1, 11)}

pipeline = HandlerRegistry("pipeline")
bus = CommandBus("sqlite:///pipeline.db")
broken = {"sales-07.csv"}  # this file cannot be read the first time


@pipeline.command
async def start(day: str) -> int:
    """Fan out: one command for each file, and `report` when all of them have ended."""
    parts = [read(name=name) for name in FILES]
    await bus.create_batch(parts, name=f"sales of {day}", on_complete=report(day=day))
    return len(parts)


@pipeline.command(retry=RetryPolicy(max_attempts=3, backoff_schedule=[0.1]))
async def read(name: str) -> int:
    if name in broken:
        broken.discard(name)
        raise OSError(f"{name} cannot be read")
    return sum(FILES[name])


@pipeline.command
async def report(context: HandlerContext, day: str) -> dict[str, int]:
    """Fan in: the records of all commands of the batch."""
    parts = await context.batch_results()
    return {"files": len(parts), "sales": sum(part.result or 0 for part in parts)}


async def the_report() -> dict[str, int]:
    """The result of `report`, which the bus sends by itself when the last file is read."""
    while not (found := await bus.query_commands(domain="pipeline", command_type="report", limit=1)):
        await asyncio.sleep(0.05)
    return (await bus.wait(found[0].command_id, timeout=10)).result


async def main() -> None:
    async with bus, Worker(bus, pipeline, concurrency=4):
        files = await bus.request(start(day="Monday"), timeout=10)
        made = await the_report()
        print(f"read {files} files: {made}")
        assert made == {"files": len(FILES), "sales": sum(map(sum, FILES.values()))}


if __name__ == "__main__":
    asyncio.run(main())
