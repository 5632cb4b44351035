import os

from openai import BadRequestError as Refusal, OpenAI

client = OpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"])


def complete(model, prompt):
    return client.responses.create(model=model, input=prompt).output_text


def stream(model, prompt):
    for event in client.responses.create(model=model, input=prompt, stream=True):
        if event.type == "response.output_text.delta":
            yield event.delta


def embed(model, text):
    return client.embeddings.create(model=model, input=text).data[0].embedding
