import os

from agents import (
    Agent,
    Runner,
    set_default_openai_api,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI, BadRequestError as Refusal
from openai.types.responses import ResponseTextDeltaEvent

client = AsyncOpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"])
set_default_openai_client(client, use_for_tracing=False)
set_default_openai_api("chat_completions")
# Otherwise traces go to api.openai.com.
set_tracing_disabled(True)


def create(model):
    return Agent(name="a", model=f"openai/{model}")


async def complete(model, prompt):
    return (await Runner.run(create(model), prompt)).final_output


async def stream(model, prompt):
    result = Runner.run_streamed(create(model), prompt)
    async for event in result.stream_events():
        data = getattr(event, "data", None)
        if isinstance(data, ResponseTextDeltaEvent):
            yield data.delta
    tokens = result.context_wrapper.usage.total_tokens
    assert tokens == 0, f"usage without include_usage in the request: {tokens} tokens"
