import json
import os

import instructor
from instructor.core import InstructorRetryException as Refusal
from pydantic import BaseModel


class Reply(BaseModel):
    text: str


def answer(text):
    return json.dumps({"text": text})


def create(model):
    return instructor.from_provider(
        f"openai/{model}", base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"]
    )


def messages(prompt):
    return [{"role": "user", "content": prompt}]


def complete(model, prompt):
    return create(model).create(response_model=Reply, messages=messages(prompt)).text


def stream(model, prompt):
    so_far = ""
    # Each reply has all the text so far.
    for reply in create(model).create_partial(response_model=Reply, messages=messages(prompt)):
        text = reply.text or ""
        yield text.removeprefix(so_far)
        so_far = text
