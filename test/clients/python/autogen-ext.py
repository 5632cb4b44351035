import os

from autogen_core.models import ModelFamily, ModelInfo, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from openai import BadRequestError as Refusal


def create(model):
    # Without model_info, the client knows only OpenAI's models.
    info = ModelInfo(
        vision=False,
        function_calling=True,
        json_output=True,
        structured_output=True,
        family=ModelFamily.UNKNOWN,
    )
    return OpenAIChatCompletionClient(
        model=model,
        base_url=os.environ["BASE_URL"],
        api_key=os.environ["API_KEY"],
        model_info=info,
    )


def messages(prompt):
    return [UserMessage(content=prompt, source="user")]


async def complete(model, prompt):
    return (await create(model).create(messages(prompt))).content


async def stream(model, prompt):
    async for piece in create(model).create_stream(messages(prompt)):
        # The last piece is the whole result.
        if isinstance(piece, str):
            yield piece
