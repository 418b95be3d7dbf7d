"""The evaluation set: fixed questions with exact answers, thinking on with effort `max`."""
import random

from . import encode_question, encode_sample, make_sample

# task, count, limits. Retrieval is three quarters up to about 1,000 tokens, the rest above.
_GROUPS = (
    ("maths", 24, {"steps": 1}),
    ("maths", 24, {"steps": 2}),
    ("maths", 16, {"steps": 3}),
    ("retrieval", 48, {"max_tokens": 1000}),
    ("retrieval", 16, {"max_tokens": 3200, "min_tokens": 1200}),
    ("tools", 32, {}),
    ("json", 32, {}),
)


def _is_question(sample):
    """Tool samples that end with text instead of calls are left out."""
    return sample.task != "tools" or not sample.messages[-1]["content"]


def evaluation_set(tokenizer, seed):
    """-> 192 dicts; `prompt_ids` end with the generation prompt, `reference_ids` are one right continuation"""
    rng, entries, numbers = random.Random(seed), [], {}
    for task, count, limits in _GROUPS:
        made = 0
        while made < count:
            sample = make_sample(rng, task, **limits)
            if not _is_question(sample):
                continue
            sample.effort = "max"
            prompt = encode_question(tokenizer, sample)
            whole, _ = encode_sample(tokenizer, sample)
            number = numbers[task] = numbers.get(task, -1) + 1
            entries.append(dict(id=f"{task}-{number}", task=task, messages=sample.messages[:-1], tools=sample.tools, opts=sample.options,
                                answer=sample.answer, steps=sample.steps, prompt_tokens=len(prompt), prompt_ids=prompt,
                                reference_ids=whole[len(prompt):]))
            made += 1
    return entries
