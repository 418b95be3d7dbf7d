"""Generated chats: which tasks there are, and how a sample becomes a training document.

Everything is drawn from one `random.Random`, so a seed fixes the data. The order of the draws is part of that: `check.py` holds a
digest of it.
"""
from chat import encode_chat

from .free_text import definition, plain_text, small_talk, story
from .json_extraction import json_extraction
from .list_work import list_work
from .maths import arithmetic, maths
from .mixtures import conversation, unneeded_tools
from .retrieval import retrieval
from .tool_calls import tool_calls

# task: (generator, share)
TASKS = {
    "maths": (maths, 0.26),
    "arith": (arithmetic, 0.07),
    "retrieval": (retrieval, 0.2),
    "list": (list_work, 0.12),
    "tools": (tool_calls, 0.11),
    "tools_none": (unneeded_tools, 0.02),
    "json": (json_extraction, 0.09),
    "story": (story, 0.04),
    "definition": (definition, 0.03),
    "smalltalk": (small_talk, 0.01),
    "multiturn": (conversation, 0.05),
}
# Tokens by which a document may exceed the asked length; frames and notes are not counted when a text is made.
LENGTH_SLACK = 96


def choose_task(rng):
    return rng.choices(list(TASKS), [share for _, share in TASKS.values()])[0]


def make_sample(rng, task=None, **limits):
    """limits go to the task's generator, e.g. steps of `maths` or max_tokens of `retrieval`"""
    task = task or choose_task(rng)
    sample = TASKS[task][0](rng, **limits)
    sample.task = task
    return sample


def _draw_thinking(rng):
    """-> thinking, effort: 12 % without thinking; an effort note in half of all chats, `max` in four of seven"""
    kind = rng.random()
    effort = rng.choice(("low", "medium", "high", "max", "max", "max", "max")) if kind >= 0.5 else None
    return kind >= 0.12, effort


def encode_sample(tokenizer, sample, rng=None):
    """-> ids, mask of what the model produces. With rng, thinking and effort are drawn instead of taken from the sample."""
    thinking, effort = _draw_thinking(rng) if rng is not None else (sample.thinking, sample.effort)
    if not sample.options:
        return encode_chat(tokenizer, sample.messages, sample.tools, thinking=thinking, thinking_effort=effort)
    # The notes of the options stand between the last question and its answer.
    ids, mask = encode_chat(tokenizer, sample.messages[:-1], sample.tools, thinking=thinking, thinking_effort=effort, **sample.options)
    answer_ids, answer_mask = encode_chat(tokenizer, sample.messages[-1:], thinking=thinking)
    return ids + answer_ids, mask + answer_mask


def encode_question(tokenizer, sample):
    """-> ids up to the generation prompt of the last answer"""
    return encode_chat(tokenizer, sample.messages[:-1], sample.tools, thinking=sample.thinking, thinking_effort=sample.effort,
                       generation_prompt=True, **sample.options)[0]


def training_document(tokenizer, rng, max_length=1024):
    """-> ids, mask; at most max_length + LENGTH_SLACK ids of a chat. 2 % are plain text."""
    if rng.random() < 0.02:
        ids = [tokenizer.bos] + tokenizer.encode(plain_text(rng)) + [tokenizer.eos]
        return ids, [0] + [1] * (len(ids) - 1)
    while True:
        task = choose_task(rng)
        limits = {"max_tokens": max_length} if task == "retrieval" else {}
        ids, mask = encode_sample(tokenizer, make_sample(rng, task, **limits), rng)
        if len(ids) <= max_length + LENGTH_SLACK:
            return ids, mask
