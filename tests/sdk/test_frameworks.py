"""Inside real agent frameworks: their parallel tools are steps, and a stop is nothing that the model hears of.

Of the two, one lets a tool's exception end the agent, the other hands it to the model as text.
"""

# ruff: noqa: PT012  (leaving the block is part of the test)

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kani import AIFunction, ChatMessage, Kani, ToolCall
from kani.engines.base import BaseEngine, Completion
from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import stepfence
from stepfence import Action, Run, Step
from tests.sdk.gateway import Problem, ScriptedGateway, connection, go

PLAN = {"refund": "Payment", "mail": "Create", "note": "Create"}


class Model:
    """Asks for two tools at once, then for a third, then answers. Keeps all that it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __call__(self, messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        parts = [part for message in messages for part in message.parts]
        self.told = [str(getattr(part, "content", "")) for part in parts]
        asked = sum(isinstance(part, ToolCallPart) for part in parts)
        if asked == 0:
            return ModelResponse(parts=[ToolCallPart("refund", {}), ToolCallPart("mail", {})])
        if asked == 2:
            return ModelResponse(parts=[ToolCallPart("note", {})])
        return ModelResponse(parts=[TextPart("all done")])


class Tools:
    """`refund` is in flight when `mail` begins, and answers only after that."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.in_flight, self.answered = asyncio.Event(), asyncio.Event()
        self.performed: list[str] = []

    def agent(self, model: Model) -> Agent[None, str]:
        agent: Agent[None, str] = Agent(FunctionModel(model))
        agent.tool_plain(self.refund)
        agent.tool_plain(self.mail)
        agent.tool_plain(self.note)
        return agent

    async def refund(self) -> Any:
        async def perform(payload: Any, step: Step) -> Any:
            async with step.sending():
                self.in_flight.set()
                await self.answered.wait()
            self.performed.append(step.id)
            return "re_1"

        return await self.run.step("refund", Action.PAYMENT, {}, perform)

    async def mail(self) -> Any:
        await self.in_flight.wait()
        asyncio.get_running_loop().call_later(0.05, self.answered.set)
        return await self.run.step("mail", Action.CREATE, {}, self._sends)

    async def note(self) -> Any:
        return await self.run.step("note", Action.CREATE, {}, self._sends)

    async def _sends(self, payload: Any, step: Step) -> Any:
        async with step.sending():
            self.performed.append(step.id)
        return f"{step.id} sent"


async def test_parallel_tools_are_steps(tmp_path: Path) -> None:
    gateway, model = ScriptedGateway(PLAN), Model()
    async with connection(gateway, tmp_path) as run:
        tools = Tools(run)
        answer = await tools.agent(model).run("refund order 4711")
        await run.finish(answer.output)
    assert answer.output == "all done"
    assert sorted(tools.performed) == ["mail", "note", "refund"]
    assert "note sent" in model.told


@pytest.mark.parametrize("code", ["halted", "draining", "cancelled", "fenced"])
async def test_a_stop_passes_through_and_the_sibling_settles(code: str, tmp_path: Path) -> None:
    gateway, model = ScriptedGateway(PLAN), Model()
    gateway.on("steps/mail/begin", Problem(code, detail="do not tell the model"))
    tools: Tools | None = None
    with pytest.raises(stepfence.Stop):
        async with connection(gateway, tmp_path) as run:
            tools = Tools(run)
            await tools.agent(model).run("refund order 4711")
    assert tools is not None
    assert tools.performed == ["refund"]
    assert len(gateway.bodies("steps/refund/complete")) == 1
    assert gateway.bodies("steps/refund/lose") == []
    assert "steps/note/begin" not in gateway.routes()
    assert [text for text in model.told if "do not tell" in text] == []


async def test_a_stop_after_a_doubt_is_no_text_for_the_model_either(tmp_path: Path) -> None:
    gateway, model = ScriptedGateway(PLAN), Model()
    gateway.on("steps/mail/begin", go(1, {}), Problem("halted", detail="do not tell the model"))

    async def breaks(payload: Any, step: Step) -> Any:
        async with step.sending():
            raise ConnectionResetError("do not tell the model")

    with pytest.raises(stepfence.Halted):
        async with connection(gateway, tmp_path) as run:
            tools = Tools(run)
            tools._sends = breaks  # type: ignore[method-assign]
            await tools.agent(model).run("refund order 4711")
    assert [text for text in model.told if "do not tell" in text] == []
    assert len(gateway.bodies("steps/refund/complete")) == 1


class Engine(BaseEngine):  # type: ignore[misc]  # the framework has no types
    """The other framework's model: asks for two tools at once, then answers. Keeps all that it was told."""

    max_context_size = 100_000

    def __init__(self) -> None:
        self.told: list[str] = []

    def prompt_len(self, messages: Any, functions: Any = None, **_more: Any) -> int:
        return 1

    async def predict(self, messages: list[ChatMessage], functions: Any = None, **_more: Any) -> Completion:
        self.told = [str(message.text) for message in messages]
        calls = [ToolCall.from_function("refund"), ToolCall.from_function("mail")] if len(messages) == 1 else None
        return Completion(ChatMessage.assistant("" if calls else "all done", tool_calls=calls))


async def chat(tools: Tools, engine: Engine) -> None:
    functions = [AIFunction(tool, auto_retry=False, desc="a tool") for tool in (tools.refund, tools.mail)]
    async for _message in Kani(engine, functions=functions).full_round("refund order 4711"):
        pass


async def test_an_exception_of_a_tool_is_text_for_the_model_so_a_stop_must_be_none(tmp_path: Path) -> None:
    gateway, engine = ScriptedGateway(PLAN), Engine()
    gateway.on("steps/mail/begin", {"outcome": "Denied", "reason": "Denied", "message": "told to the model"})
    async with connection(gateway, tmp_path) as run:
        await chat(Tools(run), engine)
        await run.finish()
    assert [text for text in engine.told if "told to the model" in text] != []


@pytest.mark.parametrize("code", ["halted", "draining", "cancelled", "fenced"])
async def test_a_stop_passes_where_exceptions_do_not(code: str, tmp_path: Path) -> None:
    gateway, engine = ScriptedGateway(PLAN), Engine()
    gateway.on("steps/mail/begin", Problem(code, detail="do not tell the model"))
    tools: Tools | None = None
    with pytest.raises(stepfence.Stop):
        async with connection(gateway, tmp_path) as run:
            tools = Tools(run)
            await chat(tools, engine)
    assert tools is not None
    assert engine.told == ["refund order 4711"]
    assert tools.performed == ["refund"]
    assert len(gateway.bodies("steps/refund/complete")) == 1
    assert gateway.bodies("steps/refund/lose") == []
