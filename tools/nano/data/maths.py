"""Word problems of one to three steps, and bare arithmetic. The reasoning states every equation."""
from .sample import one_turn
from .words import CONTAINERS, ITEMS, NAMES

_LARGEST_QUOTIENT = 60
_OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
}


def _divisors(count):
    return [d for d in range(2, 13) if count % d == 0 and count // d <= _LARGEST_QUOTIENT]


class _Story:
    """A word problem under construction. count: what the story has come to; question: None means `how many now?`."""

    def __init__(self, rng):
        self.rng = rng
        self.name, self.item = rng.choice(NAMES), rng.choice(ITEMS)
        self.other = rng.choice([name for name in NAMES if name != self.name])
        self.sentences, self.equations = [], []
        self.count, self.question = 0, None

    def compute(self, left, sign, right):
        self.count = _OPERATIONS[sign](left, right)
        self.equations.append(f"{left} {sign} {right} = {self.count}")

    # openings
    def open(self, steps):
        kind = self.rng.random()
        if kind < 0.15:
            self._open_comparison(steps)
        elif kind < 0.35:
            self._open_groups()
        elif kind < 0.45:
            self._open_two_heaps()
        else:
            self.count = self.rng.randint(3, 200)
            template = self.rng.choice(("{} has {} {}.", "{} starts the day with {} {}.", "{} collected {} {}."))
            self.sentences.append(template.format(self.name, self.count, self.item))

    def _open_comparison(self, steps):
        mine, difference = self.rng.randint(5, 150), self.rng.randint(2, 60)
        more = self.rng.random() < 0.6 or difference >= mine
        self.sentences.append(f"{self.name} has {mine} {self.item}. {self.other} has {difference} {'more' if more else 'fewer'} "
                              f"{self.item} than {self.name}.")
        self.compute(mine, "+" if more else "-", difference)
        self.question = f"How many {self.item} does {self.other} have?"
        if steps >= 2:
            self.compute(mine, "+", self.count)
            self.question = f"How many {self.item} do they have together?"

    def _open_groups(self):
        groups, size, container = self.rng.randint(2, 20), self.rng.randint(2, 12), self.rng.choice(CONTAINERS)
        template = self.rng.choice(("{} has {} {} with {} {} in each one.", "{} fills {} {} with {} {} each."))
        self.sentences.append(template.format(self.name, groups, container, size, self.item))
        self.compute(groups, "*", size)

    def _open_two_heaps(self):
        home, school = self.rng.randint(2, 200), self.rng.randint(2, 200)
        self.sentences.append(f"{self.name} has {home} {self.item} at home and {school} {self.item} at school.")
        self.compute(home, "+", school)

    # events
    def advance(self, last):
        events = [self._gain, self._loss]
        if self.count <= 90:
            events.append(self._multiply)
        if last and self.count <= 60:
            events.append(self._price)
        if last and self.question is None and _divisors(self.count):
            events.append(self._divide)
        event = self.rng.choice(events)
        if event == self._loss and self.count < 3:
            event = self._gain
        event()

    def _gain(self):
        number = self.rng.randint(2, 150)
        template = self.rng.choice(("Then {} gets {} more.", "{} buys {} more.", "{} finds {} more.", "A friend gives {} {} more."))
        self._change(template.format(self.name, number), "+", number)

    def _loss(self):
        number = self.rng.randint(1, self.count - 1)
        template = self.rng.choice(("Then {} gives away {}.", "{} loses {}.", "{} sells {}.", "{} uses {} of them."))
        self._change(template.format(self.name, number), "-", number)

    def _multiply(self):
        factor = self.rng.choice((2, 3))
        self._change(f"Then the number of {self.item} becomes {'twice' if factor == 2 else 'three times'} as large.", "*", factor)

    def _change(self, sentence, sign, number):
        self.sentences.append(sentence)
        self.compute(self.count, sign, number)
        self.question = None

    def _price(self):
        price = self.rng.randint(2, 9)
        self.question = f"Each one costs {price} dollars. How many dollars do all of the {self.item} cost?"
        self.compute(self.count, "*", price)

    def _divide(self):
        groups = self.rng.choice(_divisors(self.count))
        self.question = f"{self.name} puts them into {groups} equal groups. How many {self.item} are in each group?"
        self.compute(self.count, "/", groups)


def maths(rng, steps=None):
    steps = steps or rng.choice((1, 1, 2, 2, 2, 3))
    story = _Story(rng)
    story.open(steps)
    while len(story.equations) < steps:
        story.advance(last=len(story.equations) == steps - 1)
    question = story.question
    if question is None:
        template = rng.choice(("How many {} does {} have now?", "How many {} does {} have in the end?"))
        question = template.format(story.item, story.name)
    reasoning = " ".join(f"{word}, {equation}." for word, equation in zip(("First", "Then", "Next"), story.equations))
    return one_turn(" ".join(story.sentences + [question]), f"The answer is {story.count}.", reasoning, steps=len(story.equations))


def arithmetic(rng):
    sign = rng.choice("+-*")
    if sign == "*":
        left, right = rng.randint(2, 99), rng.randint(2, 12)
    else:
        left, right = rng.randint(2, 999), rng.randint(2, 499)
        if sign == "-" and right > left:
            left, right = right, left
    result = _OPERATIONS[sign](left, right)
    question = rng.choice(("What is {} {} {}?", "Compute {} {} {}.", "{} {} {} = ?")).format(left, sign, right)
    return one_turn(question, f"The answer is {result}.", f"First, {left} {sign} {right} = {result}.", steps=1)
