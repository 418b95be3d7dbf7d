"""One generated chat with an exactly known last answer."""
from dataclasses import dataclass, field


@dataclass
class Sample:
    """messages end with the assistant's last turn. answer: its response text, or its calls as [{name, arguments}].

    options holds `tool_choice`, `response_format`, `response_schema` where they apply; steps counts the equations of a word problem.
    """

    messages: list
    answer: object
    tools: list = None
    options: dict = field(default_factory=dict)
    steps: int = None
    task: str = ""
    thinking: bool = True
    effort: str = None


def user(text):
    return {"role": "user", "content": text}


def assistant(text, reasoning="", calls=None):
    message = {"role": "assistant", "content": text, "reasoning_content": reasoning}
    if calls:
        message["tool_calls"] = calls
    return message


def one_turn(question, answer, reasoning="", **extra):
    """A question and its answer"""
    return Sample([user(question), assistant(answer, reasoning)], answer, **extra)
