"""Tries one client: a completion, a stream, a stream that breaks, and a refusal.

A client is a file with `complete(model, prompt)`, `stream(model, prompt)` if the client has streams
(both may be asynchronous), and `Refusal`, its exception for a refused request. An `answer(text)`
wraps the text in the form that the client expects from the model. A second file of the client,
`NAME-responses`, does the same at `/v1/responses`, and may have `embed(model, text)`.
"""

import asyncio
import importlib.util
import inspect
import os
import sys
from importlib.metadata import version
from pathlib import Path


def load(name):
    path = Path(__file__).parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location("client", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ask(text):
    return f"<say>{getattr(client, 'answer', str)(text)}</say>"


def complete(model):
    said = client.complete(model, ask(TEXT))
    return loop.run(said) if inspect.isawaitable(said) else said


def stream(model, said):
    """Appends each piece to `said` as it arrives."""
    pieces = client.stream(model, ask(TEXT))
    if hasattr(pieces, "__aiter__"):
        loop.run(take(pieces, said))
    else:
        for piece in pieces:
            said.append(piece)


async def take(pieces, said):
    async for piece in pieces:
        said.append(piece)


def try_completion():
    said = complete("p/m")
    assert said == TEXT, f"a completion: {said!r}, not {TEXT!r}"


def try_stream():
    said = []
    stream("p/m", said)
    assert "".join(said) == TEXT, f"a stream: {said!r}, not {TEXT!r}"
    assert len([piece for piece in said if piece]) > 1, f"a stream: {said!r} came in one piece"


def try_broken_stream():
    said = []
    try:
        stream("p/breaks", said)
    except Exception as error:
        assert "out of memory" in everything(error), f"a broken stream: {everything(error)}"
    else:
        raise AssertionError(f"a broken stream ended as if it were whole: {said!r}")


def try_embedding():
    numbers = client.embed("p/m", "hello")
    assert numbers == [0.25, -0.5], f"an embedding: {numbers!r}"


def try_refusal():
    try:
        said = complete("nobody/m")
    except client.Refusal as error:
        assert "Unknown provider: nobody" in everything(error), f"a refusal: {everything(error)}"
    else:
        raise AssertionError(f"an unknown provider answered: {said!r}")


def everything(error):
    """Returns the messages of the exception and its causes."""
    words = []
    # crewai raises exceptions from themselves, which makes a loop.
    while error and str(error) not in words:
        words.append(str(error))
        error = error.__cause__ or error.__context__
    return "; ".join(words)


# One event loop for all attempts, because some clients keep connections, which belong to a loop.
loop = asyncio.Runner()
name = sys.argv[1]
# An answer with the nonce proves that the provider has read this prompt.
TEXT = f"Hello there, {os.environ['NONCE']}"
done = []
for file in [name, f"{name}-responses"]:
    if not (Path(__file__).parent / f"{file}.py").exists():
        continue
    client = load(file)
    tried = [try_completion, try_refusal]
    if hasattr(client, "stream"):
        tried += [try_stream, try_broken_stream]
    if hasattr(client, "embed"):
        tried.append(try_embedding)
    for attempt in tried:
        attempt()
    done += [attempt.__name__[4:] for attempt in tried]
print(f"{name} {version(name)}:", ", ".join(done))
