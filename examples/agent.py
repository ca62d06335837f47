"""An agent with a language model: it streams its answer, and asks a person before it acts.

    python examples/agent.py

The model is a fake, so nothing leaves this machine. The plan, the approval and the action are steps of
a durable process: the program may die at any point, and any worker goes on where it was. Words arrive
while the model writes, as the progress of its command.
"""

import asyncio
from dataclasses import dataclass

from commandbus import CommandBus, HandlerContext, HandlerRegistry, ProcessManager, Worker
from commandbus.processes import END, Process, WaitFor, step

agents = HandlerRegistry("agents")
ANSWER = ["The", "customer", "waited", "3", "weeks.", "I", "suggest", "to", "refund", "42", "EUR."]


@dataclass
class Case:
    question: str
    answer: str = ""
    approved_by: str = ""
    receipt: str = ""


@agents.command
async def think(context: HandlerContext, question: str) -> str:
    """The model writes; each word is seen while it does."""
    words: list[str] = []
    for number, word in enumerate(ANSWER, 1):
        words.append(word)
        await context.progress(100 * number / len(ANSWER), " ".join(words))
        await asyncio.sleep(0.02)
    return " ".join(words)


@agents.command
async def refund(context: HandlerContext, amount: int) -> str:
    """An action with effects: its step is recorded, so a second delivery does not pay twice."""
    return await context.step("pay", lambda: f"refunded {amount} EUR")


@agents.process
class Agent(Process[Case]):
    @step
    def plan(self, state: Case):
        return think(question=state.question)

    @plan.reply
    def planned(self, state: Case, reply):
        state.answer = think.result_of(reply)

    @step(timeout=86_400, then=["act", END])
    def ask(self, state: Case):
        return WaitFor("decision")

    @ask.reply
    def decided(self, state: Case, reply):
        state.approved_by = reply.result["by"] if reply.result["approved"] else ""
        return "act" if state.approved_by else END

    @step
    def act(self, state: Case):
        return refund(amount=42)

    @act.reply
    def acted(self, state: Case, reply):
        state.receipt = refund.result_of(reply)


async def stream(bus: CommandBus) -> str:
    """Print the words of the model as they come."""
    shown = ""
    while True:
        found = await bus.query_commands(domain="agents", command_type="think", limit=1)
        record = found[0] if found else None
        text = record.progress.message if record and record.progress else ""
        if text != shown:
            print(text[len(shown) :], end="", flush=True)
            shown = text
        if record is not None and record.status == "COMPLETED":
            rest = record.result[len(shown) :]
            print(rest)
            return record.result
        await asyncio.sleep(0.01)


async def main() -> None:
    async with CommandBus("memory://") as bus, Worker(bus, agents):
        manager = ProcessManager(bus, Agent)
        case = await manager.start(Case("Where is my parcel?"))
        answer = await stream(bus)
        assert answer == " ".join(ANSWER)
        # A person decides: here the program, elsewhere `commandbus process signal ID decision '{…}'`.
        await bus.signal_process(case, "decision", {"approved": True, "by": "ann"})
        ended = await manager.wait(case, timeout=10)
        print(f"approved by {ended.state['approved_by']}: {ended.state['receipt']}")
        assert ended.status == "COMPLETED"


if __name__ == "__main__":
    asyncio.run(main())
