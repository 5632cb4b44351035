import os

from openai import BadRequestError as Refusal, OpenAI

client = OpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"])


def complete(model, prompt):
    return ask(model, prompt).choices[0].message.content


def stream(model, prompt):
    for chunk in ask(model, prompt, stream=True):
        yield chunk.choices[0].delta.content or ""


def ask(model, prompt, **more):
    messages = [{"role": "user", "content": prompt}]
    return client.chat.completions.create(model=model, messages=messages, **more)
