import os

from llama_index.llms.openai_like import OpenAILike
from openai import BadRequestError as Refusal


def create(model):
    return OpenAILike(
        model=model,
        api_base=os.environ["BASE_URL"],
        api_key=os.environ["API_KEY"],
        is_chat_model=True,
        is_function_calling_model=True,
    )


def complete(model, prompt):
    return create(model).complete(prompt).text


def stream(model, prompt):
    for chunk in create(model).stream_complete(prompt):
        yield chunk.delta
