#!/usr/bin/env python3
"""CPU self-test on random weights: check.py [--tokenizer models/k3-nano/tiktoken.model]

Number formats against their definitions, the data against a digest, export and back, and the training forms of model and drafts against the
plain references. Writes only into a temporary folder; exits with an error if anything is off.
"""
import argparse
import hashlib
import json
import os
import random
import sys
import tempfile

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # float32 everywhere; before torch is imported

import torch

import formats
import parameters as nano
from batches import pack, padded_length, to_device
from chat import parse_assistant
from configuration import DEFAULT_TOKENIZER
from data import TASKS, encode_question, encode_sample, make_sample
from draft_layers import DRAFTS, block_forward, initial_parameters
from drafts import Draft
from export import export_target
from export_drafts import export_draft, target_parameters
from kda_scan import UnitLowerInverse
from model import Model
from network import Network
from tokenizer import Tokenizer

# SHA-256 over 300 samples of every task: the data that the published checkpoints were trained on.
DATA_DIGEST = "b086f85a98a205e0a690ef6be333d2239cfd026e1d9ef5431a8918e56da9f626"
_TAPS = (1, 2, 3, 5, 7, 8, 10, 11)
# Of logits about 5 in size: the chunk form and the recurrence sum in different orders.
_FORWARD_TOLERANCE = 5e-3
_TEXTS = ("hello 你好", "第123页 don't", "a" + " " * 17 + "b", "line1\n\nline2", "😀 <|open|>think<|sep|>")


class Checks:
    def __init__(self):
        self.failed = []

    def __call__(self, name, error, tolerance=0.0):
        error = float(torch.as_tensor(error).detach())
        good = error <= tolerance  # false for NaN
        print(f"{name:<58} {error:.3e} {'ok' if good else 'FAILED'}", flush=True)
        if not good:
            self.failed.append(name)


def largest_difference(a, b):
    return (a.float() - b.float()).abs().max()


def e4m3_values():
    """The 253 finite values, from the definition: 4 exponent bits with bias 7, 3 mantissa bits, no infinities"""
    magnitudes = [m * 2.0**-9 for m in range(8)] + [(8 + m) * 2.0**(e - 10) for e in range(1, 16) for m in range(8)]
    return torch.tensor(sorted({sign * value for value in magnitudes[:-1] for sign in (1, -1)}))


def check_formats(check):
    grid = e4m3_values()
    check("E4M3 values are kept", largest_difference(formats.e4m3(grid), grid))
    x = (torch.randn(4000) * torch.exp(torch.randn(4000) * 3)).clamp(-448, 448)
    nearest = (x[:, None] - grid[None]).abs().min(1).values
    check("E4M3 rounds to the nearest", largest_difference((formats.e4m3(x).float() - x).abs(), nearest), 1e-6)
    weight = torch.randn(576, 200) * 0.1
    check("block-FP8 is read back as rounded", largest_difference(formats.fp8_unpack(*formats.fp8_pack(weight)), formats.fp8_round(weight)))
    step = formats.fp8_scales(weight).max() * 32  # between the largest codes
    check("block-FP8 is near", largest_difference(formats.fp8_round(weight), weight), step / 2 * 1.0001)
    weight = torch.randn(64, 128) * 0.1
    check("MXFP4 is read back as rounded", largest_difference(formats.mx_unpack(*formats.mx_pack(weight)), formats.mx_round(weight)))
    grid = torch.cat([formats.E2M1_MAGNITUDES, -formats.E2M1_MAGNITUDES]).repeat(2)[None] * 2.0**-7
    check("MXFP4 values are kept", largest_difference(formats.mx_round(grid), grid))


def data_digest():
    digest = hashlib.sha256()
    for task in TASKS:
        for seed in range(300):
            s = make_sample(random.Random(seed), task)
            digest.update(json.dumps([s.messages, s.tools, s.options, s.answer, s.steps]).encode())
    return digest.hexdigest()


def check_text(check, tokenizer):
    for text in _TEXTS:
        ids = tokenizer.encode(text)
        check("tokenizer gives the text back", tokenizer.decode(ids) != text)
        check("text gives no special id", max(ids) >= tokenizer.first_special)
    check("data are those of the published checkpoints", data_digest() != DATA_DIGEST)
    wrong = 0
    for seed in range(50):
        for task in ("maths", "tools", "json"):
            sample = make_sample(random.Random(seed), task)
            ids = encode_sample(tokenizer, sample)[0][len(encode_question(tokenizer, sample)):]
            message, last = parse_assistant(tokenizer, ids), sample.messages[-1]
            calls = [dict(call["function"]) for call in last.get("tool_calls", [])]
            wrong += [message["content"], message["reasoning"], message["tool_calls"], message["finished"]] != [
                last["content"], last["reasoning_content"], calls, True]
    check("encoded answers are parsed back", wrong)


def check_inverse(check):
    lower = (torch.randn(6, 16, 16) * 0.5).tril(-1)
    plain, blocked = lower.clone().requires_grad_(), lower.clone().requires_grad_()
    expected, inverse = torch.linalg.inv(torch.eye(16) + plain), UnitLowerInverse.apply(blocked)
    check("inverse inside a chunk", largest_difference(expected, inverse) / expected.abs().max(), 1e-5)
    weight = torch.randn_like(lower)
    expected.backward(weight)
    inverse.backward(weight)
    gradient = plain.grad.tril(-1)
    check("its gradient", largest_difference(gradient, blocked.grad) / gradient.abs().max(), 1e-4)


def random_parameters():
    """Values at which every part matters: no norm is 1, scorers and router biases differ"""
    parameters = nano.initial_parameters(3)
    for name, value in parameters.items():
        if "norm" in name:
            parameters[name] = value + 0.2 * torch.randn_like(value)
        if "res_proj" in name:
            parameters[name] = value * 20
    parameters["moe.bias"] = torch.rand_like(parameters["moe.bias"]) * 0.3
    return parameters


def check_model(check, tokenizer, parameters, model):
    """-> packed batch and its documents, logits and taps of the training form"""
    rng, documents = random.Random(0), []
    for task, tokens in (("maths", 70), ("smalltalk", 37), ("list", 49)):
        ids, mask = encode_sample(tokenizer, make_sample(rng, task))
        documents.append((ids[:tokens], mask[:tokens]))
    batch = to_device(pack(documents, 256))
    logits, _, caught = Network().forward(nano.layer_tensors(parameters, quantised=True), batch, _TAPS)
    at = 0
    for ids, _ in documents:
        part = slice(at, at + len(ids))
        expected, taps = model.forward(ids, model.new_state(), _TAPS)
        check("training form = recurrence, logits", largest_difference(expected, logits[part]), _FORWARD_TOLERANCE)
        check("training form = recurrence, taps", max(largest_difference(taps[i], caught[i][part]) for i in _TAPS), _FORWARD_TOLERANCE)
        state = model.new_state()
        pieces = [model.forward(ids[:20], state)[0]] + [model.forward([i], state)[0] for i in ids[20:]]
        check("prefill and single steps = one pass", largest_difference(torch.cat(pieces), expected), _FORWARD_TOLERANCE)
        at += padded_length(len(ids))
    return batch, documents, caught


def check_drafts(check, tokenizer, folder, model, batch, documents, caught):
    """The second document's 20th token as anchor; the packed row around it must not be seen"""
    first = padded_length(len(documents[0][0]))
    anchor = first + 20
    for kind, shape in DRAFTS.items():
        trained = {name: (value + 0.1 * torch.randn_like(value)).to(torch.bfloat16).float()
                   for name, value in initial_parameters(shape, 1).items()}
        path = os.path.join(folder, kind)
        export_draft(trained, kind, path, tokenizer)
        draft = Draft(path, model)
        taps = torch.cat([caught[layer] for layer in shape.taps], -1)
        y = block_forward(trained, shape, taps, torch.tensor([anchor]), batch.ids, batch.positions, draft.embedding, draft.mask_id,
                          shape.block)[0]
        draft.add_context([caught[layer][first:anchor] for layer in shape.taps])
        check(f"{kind}: training form = reference", largest_difference(y, draft.block(int(batch.ids[anchor]), shape.block)), 1e-4)


@torch.no_grad()
def check_network(check, tokenizer, tokenizer_path):
    with tempfile.TemporaryDirectory() as folder:
        parameters, target = random_parameters(), os.path.join(folder, "target")
        export_target(parameters, target, tokenizer_path)
        back = target_parameters(target)
        check("export keeps the stored values", max(largest_difference(back[n], nano.stored_value(n, parameters[n])) for n in parameters))
        model = Model(target)
        batch, documents, caught = check_model(check, tokenizer, parameters, model)
        check_drafts(check, tokenizer, folder, model, batch, documents, caught)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", default=str(DEFAULT_TOKENIZER), help="tiktoken.model (default: that of models/k3-nano)")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    check, tokenizer = Checks(), Tokenizer(arguments.tokenizer)
    check_formats(check)
    check_text(check, tokenizer)
    check_inverse(check)
    check_network(check, tokenizer, arguments.tokenizer)
    sys.exit("failed: " + ", ".join(check.failed) if check.failed else 0)


if __name__ == "__main__":
    main()
