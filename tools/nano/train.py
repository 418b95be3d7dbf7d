#!/usr/bin/env python3
"""Trains k3-nano: train.py --out work/nano

Made for one data-centre GPU; on a CPU it only serves to see that everything runs. The schedule follows progress, the share of --seconds
that has passed: warm-up over 150 steps, a constant rate, linear decay behind --decay, quantised forward passes behind --quantise.
"""
import argparse
import json
import os
import time

import torch

import parameters as nano
from batches import Loader
from configuration import DEFAULT_TOKENIZER, DEVICE
from network import Network
from optimiser import MuonAdam
from tokenizer import Tokenizer
from validation import Validation

_WARM_UP_STEPS = 150
_FINAL_RATE = 0.01
_BIAS_STEP = 2e-3
_VALIDATION_SECONDS = 45
# Compilation happens in the first steps and is not counted.
_UNCOUNTED_STEPS = 8 if DEVICE.type == "cuda" else 1


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder for parameters.safetensors, training.json and optimiser.pt")
    parser.add_argument("--tokenizer", default=str(DEFAULT_TOKENIZER), help="tiktoken.model (default: that of models/k3-nano)")
    parser.add_argument("--resume", help="--out folder of an earlier run to go on from")
    parser.add_argument("--tokens", type=int, default=65536, help="tokens of a batch, a multiple of 16")
    parser.add_argument("--seconds", type=float, default=600, help="length of the run, compilation not counted")
    parser.add_argument("--begin", type=float, default=0.0, help="progress at the start of this run")
    parser.add_argument("--end", type=float, default=1.0, help="progress at its end")
    parser.add_argument("--decay", type=float, default=0.55, help="progress at which the learning rate starts to fall")
    parser.add_argument("--quantise", type=float, default=0.75, help="progress at which quantised forward passes start")
    parser.add_argument("--muon-rate", type=float, default=4e-3)
    parser.add_argument("--adam-rate", type=float, default=4e-3)
    parser.add_argument("--compile", type=int, choices=(0, 1), default=1, help="use torch.compile (GPU only)")
    parser.add_argument("--workers", type=int, default=14, help="processes that make documents")
    parser.add_argument("--seed", type=int, default=1, help="of the documents")
    arguments = parser.parse_args()
    if arguments.tokens % 16 or arguments.tokens < 512:
        parser.error(f"--tokens is {arguments.tokens}; it has to be a multiple of 16 of at least 512")
    return arguments


class Clock:
    """Counts seconds from the end of the uncounted steps"""

    def __init__(self, seconds, begin, end):
        self.seconds, self.begin, self.end, self.start = seconds, begin, end, None

    def begin_counting(self):
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        self.start = time.time()

    @property
    def elapsed(self):
        return 0.0 if self.start is None else time.time() - self.start

    def progress(self, elapsed):
        return self.begin + (self.end - self.begin) * min(1.0, elapsed / self.seconds)


def rate_factor(step, progress, decay):
    """Factor of both learning rates before step number `step`, counted from 0"""
    factor = min(1.0, (step + 1) / _WARM_UP_STEPS)
    if progress > decay:
        factor *= max(0.0, (1.0 - progress) / (1.0 - decay)) * (1 - _FINAL_RATE) + _FINAL_RATE
    return factor


@torch.no_grad()
def balance_experts(bias, loads, step_size):
    """Moves the bias [layers, experts] of every expert by step_size, up where its load is below the layer's mean, down where above."""
    bias.add_(torch.sign(loads.mean(-1, keepdim=True) - loads) * step_size)


@torch.no_grad()
def describe(step, progress, loss, losses, batch, norm, loads, rate, tokens_per_second):
    """-> log line, record"""
    answers = batch.answers.float()
    answer_loss = float((losses * answers).sum() / answers.sum())
    imbalance = float((loads.max(-1).values / loads.mean(-1)).mean())
    line = (f"step {step} progress {progress:.3f} loss {float(loss):.4f} answers {answer_loss:.4f} norm {float(norm):.2f} "
            f"imbalance {imbalance:.2f} rate {rate:.2e} tokens/s {tokens_per_second:.0f}")
    if DEVICE.type == "cuda":
        line += f" memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"
    return line, (step, progress, float(loss), answer_loss)


def restore(folder, parameters, optimiser):
    for name, value in nano.load(folder).items():
        parameters[name].data.copy_(value)
    path = os.path.join(folder, "optimiser.pt")
    if os.path.exists(path):
        optimiser.restore(torch.load(path, map_location=DEVICE))


def train(arguments, loader, parameters, optimiser):
    """-> record of the run"""
    started = time.time()
    network = Network(compiled=bool(arguments.compile) and DEVICE.type == "cuda")
    validation = Validation(Tokenizer(arguments.tokenizer), arguments.tokens)
    clock = Clock(arguments.seconds, arguments.begin, arguments.end)
    step, history, validated = 0, [], time.time()
    while clock.elapsed < arguments.seconds:
        batch = loader.next()
        if step == _UNCOUNTED_STEPS:
            clock.begin_counting()
            print(f"warm after {clock.start - started:.1f} s", flush=True)
        elapsed = clock.elapsed
        progress = clock.progress(elapsed)
        loader.set_progress(progress)
        factor = rate_factor(step, progress, arguments.decay)

        tensors = nano.layer_tensors(parameters, quantised=progress >= arguments.quantise)
        logits, loads, _ = network.forward(tensors, batch)
        losses = network.token_losses(logits, batch.labels)
        loss = (losses * batch.weights).sum() / batch.weights.sum()
        loss.backward()
        norm = optimiser.step(arguments.muon_rate * factor, arguments.adam_rate * factor)
        loads = torch.stack(loads)
        balance_experts(parameters["moe.bias"], loads, _BIAS_STEP * factor)
        step += 1

        if step <= 12 or step % 50 == 0:
            speed = (step - 1 - _UNCOUNTED_STEPS) * arguments.tokens / elapsed if elapsed else 0.0
            line, record = describe(step, progress, loss, losses, batch, norm, loads, arguments.muon_rate * factor, speed)
            print(line, flush=True)
            history.append(record)
        if time.time() - validated > _VALIDATION_SECONDS:
            validated = time.time()
            print("validation", json.dumps(validation.shares(network, parameters, quantised=False)), flush=True)
    for quantised in (False, True):
        label = "quantised" if quantised else "as trained"
        print(f"validation {label}", json.dumps(validation.shares(network, parameters, quantised)), flush=True)
    seconds = time.time() - started
    print(f"{step} steps, {step * arguments.tokens} tokens, {seconds:.1f} s", flush=True)
    return dict(steps=step, tokens=step * arguments.tokens, seconds=seconds, history=history, arguments=vars(arguments))


def main():
    arguments = parse_arguments()
    loader = Loader(arguments.tokenizer, arguments.tokens, arguments.workers, arguments.seed)
    try:
        if DEVICE.type == "cuda":
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        parameters = {name: torch.nn.Parameter(value.to(DEVICE), requires_grad=name not in nano.FROZEN_NAMES)
                      for name, value in nano.initial_parameters().items()}
        optimiser = MuonAdam(parameters, nano.MUON_NAMES)
        if arguments.resume:
            restore(arguments.resume, parameters, optimiser)
        print(f"{sum(value.numel() for value in parameters.values())} parameters on {DEVICE}", flush=True)
        record = train(arguments, loader, parameters, optimiser)
    finally:
        loader.stop()
    nano.save(parameters, arguments.out, record)
    torch.save(optimiser.state(), os.path.join(arguments.out, "optimiser.pt"))


if __name__ == "__main__":
    main()
