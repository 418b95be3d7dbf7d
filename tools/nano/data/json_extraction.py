"""Facts about a person in plain text, to be given back as JSON."""
import json

from .sample import one_turn
from .words import ANIMALS, CITIES, COLOURS, DAYS, FOODS, JOBS, NAMES

_SENTENCES = {
    "age": ("{name} is {value} years old.", "At {value} years of age, {name} is doing well."),
    "city": ("{name} lives in {value}.", "The home of {name} is in {value}."),
    "job": ("{name} works as a {value}.", "By profession, {name} is a {value}."),
    "color": ("The favorite color of {name} is {value}.",),
    "food": ("{name} likes to eat {value}.",),
    "pet": ("{name} has a pet {value}.",),
    "day": ("{name} is free on {value}.",),
}


def json_extraction(rng):
    person = {
        "name": rng.choice(NAMES), "age": rng.randint(18, 90), "city": rng.choice(CITIES), "job": rng.choice(JOBS),
        "color": rng.choice(COLOURS), "food": rng.choice(FOODS), "pet": rng.choice(ANIMALS), "day": rng.choice(DAYS),
    }
    told = rng.sample(list(_SENTENCES), rng.randint(2, 5))
    body = " ".join(rng.choice(_SENTENCES[key]).format(name=person["name"], value=person[key]) for key in told)
    wanted = rng.sample(told, rng.randint(1, len(told)))
    if rng.random() < 0.8:
        wanted.insert(0, "name")
    rng.shuffle(wanted)
    listed = ", ".join(wanted)
    question = rng.choice(("Extract these fields as JSON: {}.", "Give me JSON with the keys {}.")).format(listed)
    options = _format_options(rng, wanted)
    text = f"{question}\n{body}" if rng.random() < 0.6 else f"{body}\n{question}"
    answer = json.dumps({key: person[key] for key in wanted})
    return one_turn(text, answer, f"The keys are {listed}." if rng.random() < 0.7 else "", options=options)


def _format_options(rng, wanted):
    kind = rng.random()
    if kind < 0.3:
        return {"response_format": "json_object"}
    if kind < 0.5:
        properties = {key: {"type": "integer" if key == "age" else "string"} for key in wanted}
        return {"response_format": "json_schema",
                "response_schema": {"type": "object", "properties": properties, "required": wanted}}
    return {}
