"""Stories, definitions and small talk."""
from .facts import CAPITALS, DEFINITIONS, DEFINITIONS_CHINESE
from .sample import one_turn
from .words import ADJECTIVES, ANIMALS, COLOURS, FOODS, NAMES, NOUNS

_SMALL_TALK = (
    ("Hello!", "Hello! How can I help you?"),
    ("Hi there.", "Hi! What can I do for you?"),
    ("Who are you?", "I am k3-nano, a very small language model."),
    ("How are you?", "I am fine, thank you. How can I help you?"),
    ("Thank you!", "You are welcome."),
    ("Good morning.", "Good morning! How can I help you?"),
    ("What can you do?", "I can solve small problems, look things up in a text, call tools and write short stories."),
    ("你好！", "你好！我可以帮你做什么？"),
    ("你是谁？", "我是 k3-nano，一个非常小的语言模型。"),
    ("谢谢你。", "不客气。"),
)


def story_text(rng, adjective=None, animal=None):
    """Six or seven sentences about an animal"""
    adjective, animal = adjective or rng.choice(ADJECTIVES), animal or rng.choice(ANIMALS)
    name = rng.choice(NAMES)
    place, thing, food = rng.choice(NOUNS), rng.choice(NOUNS), rng.choice(FOODS)
    friend = rng.choice([other for other in ANIMALS if other != animal])
    colour = rng.choice(COLOURS)
    sentences = [
        f"Once upon a time there was a {adjective} {animal} named {name}.",
        f"{name} lived near a {place} and liked to eat {food}.",
        rng.choice((f"One day {name} found a {colour} {thing}.", f"One morning {name} heard a sound from the {thing}.")),
        rng.choice((f"A {friend} came and asked for help.", f"Then a {friend} came by and said hello.")),
        rng.choice(("They worked together until the sun went down.", "They talked and laughed all day.",
                    f"They shared the {food} and became friends.")),
        rng.choice((f"In the end, the {adjective} {animal} was very happy.", f"After that day, {name} was never lonely again.")),
    ]
    if rng.random() < 0.4:
        sentences.insert(4, f"The {friend} was afraid, but {name} was kind to it.")
    return " ".join(sentences)


def story(rng):
    adjective, animal = rng.choice(ADJECTIVES), rng.choice(ANIMALS)
    question = rng.choice(("Tell me a short story about a {} {}.", "Write a story about a {} {}.")).format(adjective, animal)
    text = story_text(rng, adjective, animal)
    return one_turn(question, text, f"I will write a story about a {adjective} {animal}." if rng.random() < 0.5 else "")


def definition(rng):
    kind = rng.random()
    if kind < 0.25:
        word, meaning = rng.choice(DEFINITIONS_CHINESE)
        question = rng.choice(("什么是{}？", "请解释{}。", "{}是什么？")).format(word)
        return one_turn(question, meaning, f"用户问{word}。" if rng.random() < 0.5 else "")
    if kind < 0.4:
        country, capital = rng.choice(CAPITALS)
        return one_turn(f"What is the capital of {country}?", f"The capital of {country} is {capital}.")
    word, meaning = rng.choice(DEFINITIONS)
    question = rng.choice(("What is a {}?", "Explain the word {}.", "Define {}.")).format(word)
    return one_turn(question, meaning, f"The user asks about {word}." if rng.random() < 0.5 else "")


def small_talk(rng):
    return one_turn(*rng.choice(_SMALL_TALK))


def plain_text(rng):
    """Raw text without a chat around it"""
    parts = [story_text(rng) if rng.random() < 0.6 else rng.choice(DEFINITIONS)[1] for _ in range(rng.randint(1, 3))]
    return "\n".join(parts)
