import os

from anthropic import Anthropic, BadRequestError as Refusal

client = Anthropic(
    base_url=os.environ["BASE_URL"].removesuffix("/v1"), api_key=os.environ["API_KEY"]
)


def complete(model, prompt):
    return client.messages.create(**ask(model, prompt)).content[0].text


def stream(model, prompt):
    with client.messages.stream(**ask(model, prompt)) as events:
        yield from events.text_stream


def ask(model, prompt):
    return {
        "model": model,
        "max_tokens": 64,
        "messages": [{"role": "user", "content": prompt}],
    }
