#!/usr/bin/env python3
"""Trains both drafts on the frozen, exported target: train_drafts.py --target models/k3-nano --out models

Writes OUT/k3-nano-dspark and OUT/k3-nano-dflash. In every iteration the target runs once over a batch of packed documents; each draft then
takes --reuse steps with random anchors inside the answers, half of them with its full block and half with the block for 4 drafts.
"""
import argparse
import os
import time

import torch

from batches import Loader
from configuration import DEVICE
from draft_layers import DRAFTS, draft_loss, initial_parameters, is_muon
from export_drafts import export_draft, target_parameters
from network import Network
from optimiser import MuonAdam
from parameters import layer_tensors
from tokenizer import Tokenizer

_WARM_UP_ITERATIONS = 60
_DECAY = 0.4  # share of the run after which the rate starts to fall
_FINAL_RATE = 0.02
_UNCOUNTED_ITERATIONS = 3
_INITIAL_SEED = 5
_DATA_SEED = 77
# Document lengths as in the second half of the target's training.
_DATA_PROGRESS = 0.5


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="exported target, with its tiktoken.model")
    parser.add_argument("--out", required=True, help="folder in which the two draft folders are written")
    parser.add_argument("--seconds", type=float, default=200, help="length of the run, compilation not counted")
    parser.add_argument("--tokens", type=int, default=32768, help="tokens of a batch, a multiple of 16")
    parser.add_argument("--anchors", type=int, default=1536, help="anchors of a step")
    parser.add_argument("--reuse", type=int, default=3, help="steps of each draft on one batch")
    parser.add_argument("--workers", type=int, default=12, help="processes that make documents")
    parser.add_argument("--compile", type=int, choices=(0, 1), default=1, help="use torch.compile for the target (GPU only)")
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate of Muon and Adam")
    arguments = parser.parse_args()
    if arguments.tokens % 16 or arguments.tokens < 512:
        parser.error(f"--tokens is {arguments.tokens}; it has to be a multiple of 16 of at least 512")
    return arguments


class DraftTraining:
    """One draft with its optimiser and the sums behind its log line"""

    def __init__(self, kind, tokenizer, target):
        self.kind, self.shape = kind, DRAFTS[kind]
        self.mask_id = tokenizer.first_special + self.shape.mask_offset
        self.embedding, self.head = target["embed"].float(), target["head"].float()
        initial = initial_parameters(self.shape, _INITIAL_SEED)
        self.parameters = {name: torch.nn.Parameter(value.to(DEVICE)) for name, value in initial.items()}
        self.optimiser = MuonAdam(self.parameters, {name for name in self.parameters if is_muon(name)})
        self.clear()

    def clear(self):
        self.sums, self.count = [0.0, 0.0, 0.0], 0

    def step(self, batch, caught, logits, candidates, anchors, rate):
        taps = torch.cat([caught[layer] for layer in self.shape.taps], -1).float()
        chosen = candidates[torch.randint(candidates.numel(), (anchors,), device=candidates.device)]
        rows = self.shape.block if torch.rand(1).item() < 0.5 else self.shape.scored_block
        results = draft_loss(self.parameters, self.shape, batch, taps, logits, chosen, self.embedding, self.head, self.mask_id, rows)
        results[0].backward()
        self.optimiser.step(rate, rate, weight_decay=0.0)
        self.sums = [total + float(result.detach()) for total, result in zip(self.sums, results)]
        self.count += 1

    def report(self):
        loss, acceptance, overlap = (total / max(1, self.count) for total in self.sums)
        self.clear()
        return f"{self.kind} loss {loss:.4f} acceptance {acceptance:.3f} overlap {overlap:.3f}"


@torch.no_grad()
def run_target(network, target, batch, taps):
    """-> logits, taps, anchors to choose from: tokens of an answer whose next token is of the same answer"""
    logits, _, caught = network.forward(target, batch, taps)
    answers = batch.answers
    return logits, caught, (torch.roll(answers, 1) & answers & (batch.positions > 0)).nonzero().squeeze(-1)


def train(arguments, loader, target, drafts):
    network = Network(compiled=bool(arguments.compile) and DEVICE.type == "cuda")
    taps = sorted({layer for draft in drafts for layer in draft.shape.taps})
    begun, counted_from, iteration, share = time.time(), None, 0, 0.0
    while share < 1.0:
        if iteration == _UNCOUNTED_ITERATIONS:
            counted_from = time.time()
            print(f"warm after {counted_from - begun:.1f} s", flush=True)
        share = 0.0 if counted_from is None else min(1.0, (time.time() - counted_from) / arguments.seconds)
        batch = loader.next()
        logits, caught, candidates = run_target(network, target, batch, taps)
        factor = min(1.0, (iteration + 1) / _WARM_UP_ITERATIONS) * max(_FINAL_RATE, min(1.0, (1 - share) / (1 - _DECAY)))
        if candidates.numel():
            for draft in drafts:
                for _ in range(arguments.reuse):
                    draft.step(batch, caught, logits, candidates, arguments.anchors, arguments.rate * factor)
        iteration += 1
        if iteration in (1, 5, 20) or iteration % 50 == 0:
            print(f"iteration {iteration} share {share:.3f}", *(draft.report() for draft in drafts), flush=True)
    print(f"{iteration} iterations, {time.time() - begun:.1f} s", flush=True)


def main():
    arguments = parse_arguments()
    tokenizer_path = os.path.join(arguments.target, "tiktoken.model")
    loader = Loader(tokenizer_path, arguments.tokens, arguments.workers, _DATA_SEED)
    loader.set_progress(_DATA_PROGRESS)
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        tokenizer = Tokenizer(tokenizer_path)
        with torch.no_grad():
            target = layer_tensors({name: value.to(DEVICE) for name, value in target_parameters(arguments.target).items()}, quantised=False)
        drafts = [DraftTraining(kind, tokenizer, target) for kind in DRAFTS]
        train(arguments, loader, target, drafts)
    finally:
        loader.stop()
    for draft in drafts:
        folder = os.path.join(arguments.out, f"k3-nano-{draft.kind}")
        print(folder, export_draft(draft.parameters, draft.kind, folder, tokenizer), "bytes")


if __name__ == "__main__":
    main()
