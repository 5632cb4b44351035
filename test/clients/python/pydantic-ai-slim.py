import os

from pydantic_ai import Agent, ModelHTTPError as Refusal
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

# For models given as a string, such as in complete().
os.environ["OPENAI_BASE_URL"] = os.environ["BASE_URL"]
os.environ["OPENAI_API_KEY"] = os.environ["API_KEY"]


def complete(model, prompt):
    return Agent(f"openai-chat:{model}").run_sync(prompt).output


async def stream(model, prompt):
    provider = OpenAIProvider(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"])
    agent = Agent(OpenAIChatModel(model, provider=provider))
    async with agent.run_stream(prompt) as result:
        async for piece in result.stream_text(delta=True, debounce_by=None):
            yield piece
