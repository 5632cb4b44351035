import os

from anthropic import BadRequestError as Refusal
from langchain_anthropic import ChatAnthropic


def create(model):
    return ChatAnthropic(
        model=model,
        base_url=os.environ["BASE_URL"].removesuffix("/v1"),
        api_key=os.environ["API_KEY"],
        max_tokens=64,
    )


def complete(model, prompt):
    return create(model).invoke(prompt).text


def stream(model, prompt):
    for chunk in create(model).stream(prompt):
        yield chunk.text
