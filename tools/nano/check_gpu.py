#!/usr/bin/env python3
"""Self-test of the GPU parts, then the time of a training step: check_gpu.py [--tokens 65536]

The Triton walk forward and backward and variable-length attention against plain torch in float32; the compiled network against the
eager one. Needs a CUDA GPU and triton.
"""
import argparse
import random
import sys
import time

import torch

import kda_scan
import parameters as nano
from batches import pack, padded_length, to_device
from configuration import DEFAULT_TOKENIZER, NANO
from data import training_document
from layers import causal_attention
from network import Network
from optimiser import MuonAdam
from tokenizer import Tokenizer

# Relative errors (Frobenius norm) of bfloat16 products.
_WALK_TOLERANCE = 0.03
_ATTENTION_TOLERANCE = 0.02
_ATTENTION_GRADIENT_TOLERANCE = 0.04
# At initial values and 65,536 tokens the float32 loss is 8.1953; eager bfloat16 gave 8.1982, compiled 8.1957, as it rounds less often.
_LOSS_TOLERANCE = 5e-3
_TIMED_STEPS = 5


def relative_error(value, expected):
    return ((value.float() - expected.float()).norm() / expected.float().norm()).item()


def check_walk():
    """-> largest relative error of output and gradients. Five documents, one of them empty."""
    bounds = torch.tensor([0, 5, 6, 6, 20, 24], dtype=torch.int32, device="cuda")
    shape = (24, NANO.heads, 16, NANO.kda_dim)
    inputs = [torch.randn(shape, device="cuda") * scale for scale in (0.1, 0.1, 0.1, 1.0)]
    inputs.append(torch.randn(*shape[:3], 16, device="cuda").tril() * 0.1)
    decay = torch.rand(shape[0], shape[1], shape[3], device="cuda")
    fast = [value.bfloat16().requires_grad_() for value in inputs] + [decay.clone().requires_grad_()]
    plain = [value.detach().float().requires_grad_() for value in fast]
    output, expected = kda_scan.walk(*fast, bounds), kda_scan.walk_in_torch(*plain, bounds)
    gradient = torch.randn_like(expected).bfloat16()
    output.backward(gradient)
    expected.backward(gradient.float())
    errors = [relative_error(output, expected)] + [relative_error(a.grad, b.grad) for a, b in zip(fast, plain)]
    print("walk: output, gradients of query, key, write, value, inner, decay:", *(f"{error:.4f}" for error in errors))
    with torch.no_grad():
        same = torch.equal(kda_scan.walk(*fast, bounds), output)
    print("walk without gradients gives the same:", same)
    return max(errors) if same else float("inf")


def check_attention():
    """-> relative errors of output and query gradient"""
    bounds = torch.tensor([0, 64, 80, 256], dtype=torch.int32, device="cuda")
    query, key, value = (torch.randn(256, NANO.heads, NANO.query_dim, device="cuda").bfloat16() for _ in range(3))
    query.requires_grad_()
    output = causal_attention(query, key, value, bounds, 176)
    output.float().pow(2).sum().backward()
    plain = query.detach().float().cpu().requires_grad_()
    expected = causal_attention(plain, key.float().cpu(), value.float().cpu(), bounds.cpu(), 176)
    expected.pow(2).sum().backward()
    errors = relative_error(output.cpu(), expected), relative_error(query.grad.cpu(), plain.grad)
    print("attention: output, query gradient:", *(f"{error:.4f}" for error in errors))
    return errors


def filled_batch(tokenizer, size):
    rng, documents, used = random.Random(3), [], 0
    while True:
        document = training_document(tokenizer, rng, 1000)
        used += padded_length(len(document[0]))
        if used > size:
            return to_device(pack(documents, size))
        documents.append(document)


def loss_of(network, parameters, batch, quantised=False):
    logits, _, _ = network.forward(nano.layer_tensors(parameters, quantised), batch)
    return (network.token_losses(logits, batch.labels) * batch.weights).sum() / batch.weights.sum()


def time_steps(network, parameters, optimiser, batch, quantised):
    """-> milliseconds of a step; the rate is zero, so nothing changes"""
    for step in range(_TIMED_STEPS + 1):
        if step == 1:  # the first may compile
            torch.cuda.synchronize()
            started = time.time()
        loss_of(network, parameters, batch, quantised).backward()
        optimiser.step(0.0, 0.0)
    torch.cuda.synchronize()
    return (time.time() - started) / _TIMED_STEPS * 1e3


def check_network(tokenizer, tokens):
    """-> difference of compiled and eager loss"""
    batch = filled_batch(tokenizer, tokens)
    parameters = {name: torch.nn.Parameter(value.cuda(), requires_grad=name not in nano.FROZEN_NAMES)
                  for name, value in nano.initial_parameters().items()}
    with torch.no_grad():
        eager = float(loss_of(Network(), parameters, batch))
    network, started = Network(compiled=True), time.time()
    loss = loss_of(network, parameters, batch)
    loss.backward()
    print(f"loss: eager {eager:.4f}, compiled {loss.item():.4f}, compiled in {time.time() - started:.1f} s")
    optimiser = MuonAdam(parameters, nano.MUON_NAMES)
    for quantised in (False, True):
        milliseconds = time_steps(network, parameters, optimiser, batch, quantised)
        print(f"step of {tokens} tokens, {'quantised' if quantised else 'as stored'}: {milliseconds:.1f} ms, "
              f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", flush=True)
    return abs(eager - loss.item())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", default=str(DEFAULT_TOKENIZER), help="tiktoken.model (default: that of models/k3-nano)")
    parser.add_argument("--tokens", type=int, default=65536, help="tokens of the timed batch")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() or kda_scan.triton is None:
        sys.exit("check_gpu: needs a CUDA GPU and triton; check.py runs on a CPU")
    torch.manual_seed(0)
    attention, attention_gradient = check_attention()
    good = (check_walk() < _WALK_TOLERANCE and attention < _ATTENTION_TOLERANCE and attention_gradient < _ATTENTION_GRADIENT_TOLERANCE
            and check_network(Tokenizer(arguments.tokenizer), arguments.tokens) < _LOSS_TOLERANCE)
    sys.exit(0 if good else "check_gpu: an error is above its tolerance")


if __name__ == "__main__":
    main()
