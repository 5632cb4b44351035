import os

from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret
from openai import BadRequestError as Refusal


def run(model, prompt, **more):
    generator = OpenAIChatGenerator(
        model=model,
        api_base_url=os.environ["BASE_URL"],
        api_key=Secret.from_env_var("API_KEY"),
        **more,
    )
    return generator.run([ChatMessage.from_user(prompt)])


def complete(model, prompt):
    return run(model, prompt)["replies"][0].text


def stream(model, prompt):
    pieces = []
    # The callback runs during the call, so the pieces are checked after it.
    run(model, prompt, streaming_callback=lambda chunk: pieces.append(chunk.content))
    yield from pieces
