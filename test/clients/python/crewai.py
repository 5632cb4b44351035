import os

# crewai sends telemetry by default.
os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"
os.environ["CREWAI_TRACING_ENABLED"] = "false"

from crewai import LLM, Agent, Crew, Task
from openai import BadRequestError as Refusal


def run(model, prompt, is_stream=False):
    llm = LLM(
        model=f"openai/{model}",
        base_url=os.environ["BASE_URL"],
        api_key=os.environ["API_KEY"],
        stream=is_stream,
    )
    agent = Agent(role="clerk", goal="to answer", backstory="none", llm=llm)
    task = Task(description=prompt, expected_output="text", agent=agent)
    return Crew(agents=[agent], tasks=[task], stream=is_stream).kickoff()


def complete(model, prompt):
    return run(model, prompt).raw


def stream(model, prompt):
    for chunk in run(model, prompt, is_stream=True):
        yield chunk.content
