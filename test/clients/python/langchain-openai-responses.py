import os

from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from openai import BadRequestError as Refusal

TARGET = {"base_url": os.environ["BASE_URL"], "api_key": os.environ["API_KEY"]}


def create(model):
    return ChatOpenAI(model=model, use_responses_api=True, **TARGET)


def complete(model, prompt):
    return create(model).invoke(prompt).text


def stream(model, prompt):
    for chunk in create(model).stream(prompt):
        yield chunk.text


def embed(model, text):
    # The tokens that it otherwise sends are those of OpenAI's models.
    embeddings = OpenAIEmbeddings(model=model, check_embedding_ctx_length=False, **TARGET)
    return embeddings.embed_query(text)
