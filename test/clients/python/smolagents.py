import os

from openai import BadRequestError as Refusal
from smolagents import ChatMessage, MessageRole, OpenAIServerModel


def create(model):
    return OpenAIServerModel(
        model_id=model, api_base=os.environ["BASE_URL"], api_key=os.environ["API_KEY"]
    )


def messages(prompt):
    return [ChatMessage(role=MessageRole.USER, content=prompt)]


def complete(model, prompt):
    return create(model).generate(messages(prompt)).content


def stream(model, prompt):
    for delta in create(model).generate_stream(messages(prompt)):
        yield delta.content or ""
