"""Chats made of other tasks: tools that are not needed, and conversations of several turns."""
from .free_text import definition, small_talk, story
from .list_work import list_work
from .maths import arithmetic, maths
from .sample import Sample, assistant, user
from .tool_calls import declaration
from .words import ANIMALS, NAMES

_SYSTEM_PROMPTS = ("You are a helpful assistant.", "You are k3-nano, a helpful assistant.", "Answer in a short way.")


def unneeded_tools(rng):
    sample = rng.choice((definition, small_talk, arithmetic))(rng)
    sample.tools = [declaration(rng)]
    if rng.random() < 0.3:
        sample.options = {"tool_choice": "none"}
    return sample


def conversation(rng):
    """One to three questions of other tasks, often between an introduction and a question about it"""
    messages, answer = [], ""
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": rng.choice(_SYSTEM_PROMPTS)})
    name, pet = rng.choice(NAMES), rng.choice(ANIMALS)
    introduced = rng.random() < 0.6
    if introduced:
        messages += [user(f"My name is {name} and I have a pet {pet}."),
                     assistant(f"Nice to meet you, {name}! A {pet} is a fine pet.")]
    for _ in range(rng.randint(1, 3)):
        sample = rng.choice((maths, arithmetic, list_work, definition, small_talk, story))(rng)
        messages += sample.messages
        answer = sample.answer
    if introduced:
        about_name = rng.random() < 0.5
        answer = f"Your name is {name}." if about_name else f"Your pet is a {pet}."
        messages += [user("What is my name?" if about_name else "What pet do I have?"), assistant(answer)]
    return Sample(messages, answer)
