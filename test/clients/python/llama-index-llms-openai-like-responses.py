import os

from llama_index.llms.openai import OpenAIResponses
from openai import BadRequestError as Refusal


def create(model):
    # Without a context window it accepts only the names of OpenAI's models.
    return OpenAIResponses(
        model=model,
        api_base=os.environ["BASE_URL"],
        api_key=os.environ["API_KEY"],
        context_window=128_000,
    )


def complete(model, prompt):
    return create(model).complete(prompt).text


def stream(model, prompt):
    for chunk in create(model).stream_complete(prompt):
        yield chunk.delta or ""
