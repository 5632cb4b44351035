import os

from langchain_openai import ChatOpenAI
from openai import BadRequestError as Refusal


def create(model):
    return ChatOpenAI(model=model, base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"])


def complete(model, prompt):
    return create(model).invoke(prompt).content


def stream(model, prompt):
    for chunk in create(model).stream(prompt):
        assert chunk.usage_metadata is None, "usage without include_usage in the request"
        yield chunk.content
