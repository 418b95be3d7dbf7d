"""Copying, reversing, sorting, counting and indexing of short lists."""
from .sample import one_turn
from .words import ADJECTIVES, ANIMALS, NOUNS

_WORDS = ADJECTIVES + ANIMALS + NOUNS


def _numbered(words):
    return " ".join(f"{i} {word}" for i, word in enumerate(words, 1))


def _copy(rng, words):
    text = " ".join(words) if rng.random() < 0.5 else " ".join(str(rng.randint(0, 999)) for _ in words)
    return one_turn("Repeat this exactly: " + text, text)


def _reverse(rng, words):
    return one_turn("Reverse the order of these words: " + " ".join(words), " ".join(reversed(words)))


def _sort(rng, words):
    numbers = rng.sample(range(100), len(words))
    down = rng.random() < 0.3
    order = "large to small" if down else "small to large"
    question = f"Sort these numbers from {order}: {' '.join(map(str, numbers))}"
    return one_turn(question, " ".join(map(str, sorted(numbers, reverse=down))))


def _count_word(rng, words):
    word = rng.choice(ANIMALS)
    times = rng.randint(0, 6)
    others = [animal for animal in ANIMALS if animal != word]
    sequence = [word] * times + [rng.choice(others) for _ in range(rng.randint(1, 8))]
    rng.shuffle(sequence)
    question = f"How many times does the word {word} appear here: {' '.join(sequence)}"
    return one_turn(question, str(times), " ".join(str(i) for i in range(1, times + 1)))


def _pick(rng, words):
    number = rng.randint(1, len(words))
    question = f"What is word number {number} in this list: {' '.join(words)}"
    return one_turn(question, words[number - 1], _numbered(words[:number]))


def _count_all(rng, words):
    return one_turn("Count the words: " + " ".join(words), str(len(words)), _numbered(words))


_KINDS = ((0.22, _copy), (0.44, _reverse), (0.64, _sort), (0.78, _count_word), (0.9, _pick), (1.0, _count_all))


def list_work(rng, size=None):
    """size: number of words, 2 to 12 when not given"""
    size = size or rng.randint(2, 12)
    kind = rng.random()
    words = [rng.choice(_WORDS) for _ in range(size)]
    make = next(make for below, make in _KINDS if kind < below)
    return make(rng, words)
