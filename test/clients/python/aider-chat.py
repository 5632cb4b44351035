import os
import subprocess
from pathlib import Path

FILE = Path("answer.txt")
OPTIONS = """
    --no-git --no-check-update --no-show-model-warnings --no-show-release-notes --analytics-disable
    --no-detect-urls --no-auto-lint --no-pretty --yes-always --edit-format whole
""".split()

os.environ["OPENAI_API_BASE"] = os.environ["BASE_URL"]
os.environ["OPENAI_API_KEY"] = os.environ["API_KEY"]
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"


class Refusal(Exception):
    """aider printed an error and left the file unchanged."""


def answer(text):
    return f"{FILE}\n```\n{text}\n```\n"


def complete(model, prompt):
    """Returns the text that aider wrote into the file. aider reads the answer as a stream."""
    FILE.write_text("old\n")
    command = ["aider", "--model", f"openai/{model}", *OPTIONS, "--message", prompt, str(FILE)]
    output = subprocess.check_output(command, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    # aider exits with 0 after an error, too.
    if FILE.read_text() == "old\n":
        raise Refusal(output.decode())
    return FILE.read_text().removesuffix("\n")


# No `stream`: the pieces are only printed, and aider repeats a broken stream for a minute.
