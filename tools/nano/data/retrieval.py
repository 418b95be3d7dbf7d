"""Looking things up: lists of keys and values, and facts hidden in plain text."""
import math

from .sample import Sample, assistant, user
from .words import ADJECTIVES, ANIMALS, CITIES, COLOURS, DAYS, FOODS, ITEMS, JOBS, NAMES, NOUNS

# Rough tokens per unit, from which the number of units of a text is taken.
_TOKENS_PER_PAIR = 9
_TOKENS_PER_SENTENCE = 11
_TOKENS_AROUND = 60


def _key(rng):
    kind = rng.random()
    if kind < 0.5:
        return f"{rng.choice(ADJECTIVES)} {rng.choice(ANIMALS)}"
    if kind < 0.8:
        return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
    return f"{rng.choice(NAMES)} from {rng.choice(CITIES)}"


def _value(rng):
    kind = rng.random()
    if kind < 0.6:
        return str(rng.randint(100, 99999))
    if kind < 0.8:
        return f"{rng.choice(COLOURS)} {rng.choice(NOUNS)}"
    return f"{rng.choice(CITIES)} {rng.randint(10, 99)}"


def _sentence(rng):
    kind = rng.random()
    adjective, animal = rng.choice(ADJECTIVES), rng.choice(ANIMALS)
    name, city = rng.choice(NAMES), rng.choice(CITIES)
    if kind < 0.2:
        return f"The {adjective} {animal} walked to the {rng.choice(NOUNS)}."
    if kind < 0.4:
        return f"{name} lives in {city} and works as a {rng.choice(JOBS)}."
    if kind < 0.55:
        return f"On {rng.choice(DAYS)}, {name} ate {rng.choice(FOODS)} with {rng.choice(FOODS)}."
    if kind < 0.7:
        return f"A {rng.choice(COLOURS)} {rng.choice(NOUNS)} was near the {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}."
    if kind < 0.85:
        return f"{name} saw {rng.randint(2, 99)} {rng.choice(ITEMS)} in the {rng.choice(NOUNS)}."
    return f"The {rng.choice(NOUNS)} of {city} was very {rng.choice(ADJECTIVES)}."


def _pairs_question(rng, target):
    """-> question text, asked keys, key -> value"""
    pairs = {}
    while len(pairs) < max(2, target // _TOKENS_PER_PAIR):
        value = _value(rng)
        pairs[_key(rng)] = value
    keys = list(pairs)
    separator = rng.choice((": ", " = ", " -> "))
    listing = "\n".join(key + separator + value for key, value in pairs.items())
    key = rng.choice(keys)
    question = rng.choice(("What is the value of {}?", "Which value belongs to {}?", "Tell me the value of {}.")).format(key)
    text = f"Here is a list.\n{listing}\n{question}" if rng.random() < 0.8 else f"{question}\n{listing}"
    asked = [key]
    if rng.random() < 0.3:
        asked.append(rng.choice(keys))
    return text, asked, pairs


def _needle_question(rng, target):
    """-> question text, asked names, name -> secret"""
    sentences = [_sentence(rng) for _ in range(max(2, target // _TOKENS_PER_SENTENCE))]
    count = rng.choice((1, 1, 2, 3))
    secrets = {}
    while len(secrets) < count:
        value = _value(rng)
        secrets[rng.choice(NAMES)] = value
    for name, secret in secrets.items():
        sentences.insert(rng.randint(0, len(sentences)), f"The secret word of {name} is {secret}.")
    name = rng.choice(list(secrets))
    asked = [name]
    if count > 1 and rng.random() < 0.3:
        asked.append(rng.choice(list(secrets)))
    return " ".join(sentences) + f"\nWhat is the secret word of {name}?", asked, secrets


def retrieval(rng, max_tokens=1000, kind=None, min_tokens=40):
    """About min_tokens to max_tokens long, log-uniform. kind: `kv` or `needle`; two of three are `kv`."""
    longest = max(min_tokens + 1, max_tokens - _TOKENS_AROUND)
    target = int(math.exp(rng.uniform(math.log(min_tokens), math.log(longest))))
    kind = kind or rng.choice(("kv", "kv", "needle"))
    text, asked, values = (_pairs_question if kind == "kv" else _needle_question)(rng, target)
    again = "And the value of {}?" if kind == "kv" else "And the secret word of {}?"
    messages = []
    for turn, key in enumerate(asked):
        messages.append(user(again.format(key) if turn else text))
        messages.append(assistant(values[key], f"Look for {key}." if rng.random() < 0.7 else ""))
    return Sample(messages, values[asked[-1]])
