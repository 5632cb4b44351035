import os

# Uses the packaged list of prices and models. By default, litellm loads it from GitHub.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from litellm import BadRequestError as Refusal


def complete(model, prompt):
    return ask(model, prompt).choices[0].message.content


def stream(model, prompt):
    for chunk in ask(model, prompt, stream=True):
        yield chunk.choices[0].delta.content or ""


def ask(model, prompt, **more):
    return litellm.completion(
        model=f"openai/{model}",
        api_base=os.environ["BASE_URL"],
        api_key=os.environ["API_KEY"],
        messages=[{"role": "user", "content": prompt}],
        **more,
    )
