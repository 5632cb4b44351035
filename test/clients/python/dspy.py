import os

# dspy uses litellm, which by default loads its list of models from GitHub.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import dspy
from dspy.streaming import StreamListener, streamify
from dspy.utils.exceptions import LMInvalidRequestError as Refusal

predict = dspy.Predict("question -> answer")


def configure(model):
    dspy.configure(
        lm=dspy.LM(
            f"openai/{model}",
            api_base=os.environ["BASE_URL"],
            api_key=os.environ["API_KEY"],
            cache=False,
        )
    )


def answer(text):
    return f"[[ ## answer ## ]]\n{text}\n\n[[ ## completed ## ]]"


def complete(model, prompt):
    configure(model)
    return predict(question=prompt).answer


def stream(model, prompt):
    configure(model)
    listener = StreamListener(signature_field_name="answer")
    for item in streamify(predict, stream_listeners=[listener], async_streaming=False)(question=prompt):
        # The last item is the prediction.
        if not isinstance(item, dspy.Prediction):
            yield item.chunk
