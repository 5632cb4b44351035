import json
import os
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

USER_PATH = Path.home() / "llm"
os.environ["LLM_USER_PATH"] = str(USER_PATH)


class Refusal(Exception):
    """llm ended with an exit code other than 0."""


def complete(model, prompt):
    return "".join(run(model, prompt, "--no-stream")).removesuffix("\n")


def stream(model, prompt):
    held = ""
    # llm prints a newline after the answer.
    for piece in run(model, prompt):
        yield held
        held = piece
    yield held.removesuffix("\n")


def run(model, prompt, *options):
    USER_PATH.mkdir(exist_ok=True)
    entry = {
        "model_id": "gateway",
        "model_name": model,
        "api_base": os.environ["BASE_URL"],
        "api_key_name": "gateway",
    }
    # JSON is valid YAML.
    (USER_PATH / "extra-openai-models.yaml").write_text(json.dumps([entry]))
    (USER_PATH / "keys.json").write_text(json.dumps({"gateway": os.environ["API_KEY"]}))
    command = ["llm", "-m", "gateway", *options, prompt]
    with Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE) as process:
        while piece := os.read(process.stdout.fileno(), 65536):
            yield piece.decode()
        complaint = process.stderr.read().decode()
    if process.returncode:
        raise Refusal(complaint)
