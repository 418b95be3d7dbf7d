"""Requests that need one or two tool calls, with the tools' declarations."""
import json

from .sample import Sample, assistant, user
from .words import ADJECTIVES, CITIES, COLOURS, DAYS, FOODS, NAMES, NOUNS, TOOL_OBJECTS, TOOL_VERBS

# name: (JSON type, description, how a request words it, how a value is drawn)
_PARAMETERS = {
    "city": ("string", "City name", "in {}", lambda rng: rng.choice(CITIES)),
    "name": ("string", "Name of the person", "for {}", lambda rng: rng.choice(NAMES)),
    "day": ("string", "Day of the week", "on {}", lambda rng: rng.choice(DAYS)),
    "color": ("string", "Color to use", "in the color {}", lambda rng: rng.choice(COLOURS)),
    "count": ("integer", "How many", "with count {}", lambda rng: rng.randint(1, 99)),
    "minutes": ("integer", "Length in minutes", "for {} minutes", lambda rng: rng.choice((5, 10, 15, 20, 30, 45, 60, 90))),
    "title": ("string", "Title text", 'with the title "{}"', lambda rng: f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"),
    "food": ("string", "Food to order", "with {}", lambda rng: rng.choice(FOODS)),
    "urgent": ("boolean", "Whether it is urgent", None, lambda rng: rng.random() < 0.5),
    "price": ("number", "Highest price", "with a price up to {}", lambda rng: rng.randint(10, 500)),
}


def declaration(rng):
    """A tool with one to three required parameters"""
    verb, thing = rng.choice(TOOL_VERBS), rng.choice(TOOL_OBJECTS)
    names = rng.sample(list(_PARAMETERS), rng.choice((1, 2, 2, 3)))
    properties = {name: {"type": _PARAMETERS[name][0], "description": _PARAMETERS[name][1]} for name in names}
    return {"type": "function", "function": {
        "name": f"{verb}_{thing}", "description": f"{verb.capitalize()} the {thing}.",
        "parameters": {"type": "object", "properties": properties, "required": names}}}


def _request(rng, function):
    """-> wording, arguments"""
    arguments, parts = {}, []
    for name in function["parameters"]["required"]:
        _, _, wording, draw = _PARAMETERS[name]
        arguments[name] = draw(rng)
        if name == "urgent":
            wording = "as urgent" if arguments[name] else "as not urgent"
        parts.append(wording.format(arguments[name]))
    verb, thing = function["name"].split("_")
    return f"{verb} the {thing} {' '.join(parts)}", arguments


def tool_calls(rng, calls=None):
    declared = {}
    for _ in range(rng.choice((1, 2, 2, 3))):
        tool = declaration(rng)
        declared.setdefault(tool["function"]["name"], tool)
    tools = list(declared.values())
    requests, made = [], []
    for _ in range(calls or (2 if rng.random() < 0.2 else 1)):
        function = rng.choice(tools)["function"]
        wording, arguments = _request(rng, function)
        requests.append(wording)
        made.append({"function": {"name": function["name"], "arguments": arguments}})
    template = rng.choice(("Please {}.", "Can you {}?", "I want you to {}.", "{}."))
    text = template.format(" and also ".join(requests))
    names = " and then ".join(call["function"]["name"] for call in made)
    reasoning = f"I need to call {names}." if rng.random() < 0.8 else ""
    messages = [user(text[0].upper() + text[1:]), assistant("", reasoning, made)]
    ending = rng.random()
    if ending < 0.25:
        return _with_results(rng, messages, made, tools)
    options = {"tool_choice": "required"} if ending < 0.35 else {}
    return Sample(messages, [call["function"] for call in made], tools, options)


def _with_results(rng, messages, made, tools):
    """Adds the tools' results and a final answer that quotes their ids"""
    ids = []
    for call in made:
        ids.append(rng.randint(10, 999))
        messages.append({"role": "tool", "name": call["function"]["name"], "content": json.dumps({"status": "ok", "id": ids[-1]})})
    listed = " and ".join(map(str, ids))
    answer = f"Done. The id is {listed}." if len(made) == 1 else f"Done. The ids are {listed}."
    messages.append(assistant(answer, "The call worked." if rng.random() < 0.5 else ""))
    return Sample(messages, answer, tools)
