"""Validation during training: the share of documents whose answer is right at every position when the right text is given before it."""
import random

import torch

from batches import pack, padded_length, to_device
from data import encode_sample, make_sample
from parameters import layer_tensors
from chat import open_tag

_SEED = 4242
_KINDS = (
    ("maths1", "maths", {"steps": 1}),
    ("maths2", "maths", {"steps": 2}),
    ("maths3", "maths", {"steps": 3}),
    ("arith", "arith", {}),
    ("retrieval300", "retrieval", {"max_tokens": 300}),
    ("retrieval1000", "retrieval", {"max_tokens": 1000, "min_tokens": 500}),
    ("list", "list", {}),
    ("tools", "tools", {}),
    ("json", "json", {}),
)


class Validation:
    """As many documents of every kind in turn as one batch holds"""

    def __init__(self, tokenizer, size):
        rng, documents, self.spans = random.Random(_SEED), [], []
        response, used = open_tag(tokenizer, "response"), 0
        while True:
            kind, task, limits = _KINDS[len(documents) % len(_KINDS)]
            sample = make_sample(rng, task, **limits)
            sample.effort = "max"
            ids, mask = encode_sample(tokenizer, sample)
            if used + padded_length(len(ids)) > size:
                break
            first = _answer_start(task, ids, mask, response)
            self.spans.append((kind, used + first, used + len(ids) - 1))
            documents.append((ids, mask))
            used += padded_length(len(ids))
        self.batch = to_device(pack(documents, size))

    @torch.no_grad()
    def shares(self, network, parameters, quantised):
        """-> {kind: share of right documents}"""
        detached = {name: value.detach() for name, value in parameters.items()}
        logits, _, _ = network.forward(layer_tensors(detached, quantised), self.batch)
        right = (logits.argmax(-1) == self.batch.labels).cpu()
        results = {}
        for kind, first, end in self.spans:
            results.setdefault(kind, []).append(bool(right[first:end].all()))
        return {kind: round(sum(values) / len(values), 3) for kind, values in results.items()}


def _answer_start(task, ids, mask, response):
    """Where the last response opens; for arithmetic where the reasoning starts, which then has to be right, too"""
    if task in ("maths", "arith"):
        return mask.index(1)
    return max(i for i in range(len(ids) - len(response)) if mask[i] and ids[i:i + len(response)] == response)
