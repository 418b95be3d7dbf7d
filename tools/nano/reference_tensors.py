#!/usr/bin/env python3
"""Writes float32 reference values of the exported k3-nano and its drafts:

    reference_tensors.py --target models/k3-nano --dspark models/k3-nano-dspark --dflash models/k3-nano-dflash
                         --questions questions.jsonl --out reference.safetensors

For each prompt k: pk.ids, prompt and greedy text; pk.prompt_len; pk.margins of every greedy step; pk.logits, whose row r stands
behind id number pk.logits_first + r. For p0 also: p0.prefix [layers, T, h], the stream after every layer; p0.taps
[layers - 1, T, h]; after all ids p0.kda_state.i [head, key, value], p0.conv_state.i [3, q | k | v channels], oldest first, and
p0.mla_cache.i [T, latent | 64]; and for each draft, with the prompt as context and the first greedy token as anchor: k.0 and v.0
of its layer 0, block output y, base_logits, tokens (and confidence) for 4 drafts. The metadata names the prompts and holds the
chats that are not from the questions.
"""
import argparse
import json
import os

import torch
import torch.nn.functional as F

import safetensors_file
from chat import encode_chat
from data.sample import user
from drafts import Draft
from evaluate import read_lines
from model import Model
from tokenizer import Tokenizer

_LONGEST_TEXT = 160
_DRAFTS = 4
_KDA_LAYERS = (0, 8)
_MLA_LAYERS = (3, 12)
# Prompts of which only the last logits are kept: name -> rows before the end of the prompt.
_LAST_ROWS = {"long": 32, "tools": 16, "multi": 16}
_CHATS = {
    "zh": dict(messages=[user("什么是火山？")], thinking_effort="max"),
    "multi": dict(
        messages=[
            {"role": "system", "content": "You are a helpful assistant."},
            user("My name is Rosa and I have a pet frog."),
            {"role": "assistant", "content": "Nice to meet you, Rosa! A frog is a fine pet."},
            user("Tell me a short story about a brave owl."),
        ],
        thinking_effort="low"),
}


def choose_prompts(tokenizer, questions):
    """-> [(name, ids)]: five of the questions, among them the shortest retrieval and one of about 1,000 tokens, and two chats"""
    by_id = {question["id"]: question for question in questions}
    retrieval = sorted((question["prompt_tokens"], question["id"]) for question in questions if question["task"] == "retrieval")
    long = next((entry for entry in retrieval if entry[0] > 900), retrieval[-1])
    prompts = [("maths", by_id["maths-30"]["prompt_ids"]), ("retrieval", by_id[retrieval[0][1]]["prompt_ids"]),
               ("tools", by_id["tools-0"]["prompt_ids"]), ("json", by_id["json-0"]["prompt_ids"])]
    prompts += [(name, encode_chat(tokenizer, generation_prompt=True, **chat)[0]) for name, chat in _CHATS.items()]
    return prompts + [("long", by_id[long[1]]["prompt_ids"])]


def draft_values(draft, context, anchor):
    """context: taps of the prompt"""
    draft.reset()
    draft.add_context(context)
    y = draft.block(anchor, draft.block_rows(_DRAFTS))
    tokens, confidences = draft.propose(anchor, _DRAFTS)
    values = {"k.0": draft.keys[0], "v.0": draft.values[0], "y": y, "base_logits": F.linear(y, draft.head),
              "tokens": torch.tensor(tokens, dtype=torch.int32)}
    if confidences:
        values["confidence"] = torch.tensor(confidences)
    return values


def state_values(state):
    values = {}
    for layer in _KDA_LAYERS:
        values[f"kda_state.{layer}"], values[f"conv_state.{layer}"] = state.kda[layer], state.inputs[layer]
    for layer in _MLA_LAYERS:
        values[f"mla_cache.{layer}"] = state.latents[layer]
    return values


@torch.no_grad()
def prompt_values(model, tokenizer, drafts, name, ids, detailed):
    text, margins = model.greedy(ids, _LONGEST_TEXT, tokenizer.stop_ids)
    state, trace, taps = model.new_state(), [], tuple(range(model.config.layers - 1))
    logits, caught = model.forward(ids + text, state, taps, trace)
    first = max(0, len(ids) - _LAST_ROWS[name]) if name in _LAST_ROWS else 0
    print(f"{name}: {len(ids)} prompt ids, {len(text)} greedy, smallest margin {min(margins):.3f}", flush=True)
    values = {
        "ids": torch.tensor(ids + text, dtype=torch.int32),
        "prompt_len": torch.tensor([len(ids)], dtype=torch.int32),
        "margins": torch.tensor(margins),
        "logits": logits[first:],
        "logits_first": torch.tensor([first], dtype=torch.int32),
    }
    if detailed:
        values.update(prefix=torch.stack(trace), taps=torch.stack([caught[layer] for layer in taps]), **state_values(state))
        for kind, draft in drafts.items():
            context = [caught[layer][:len(ids)] for layer in draft.taps]
            values.update({f"{kind}.{key}": value for key, value in draft_values(draft, context, text[0]).items()})
    return values


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, about in (("target", "checkpoint folder"), ("dspark", "draft folder"), ("dflash", "draft folder"),
                        ("questions", "result of evaluate.py questions"), ("out", "safetensors file to write")):
        parser.add_argument("--" + name, required=True, help=about)
    arguments = parser.parse_args()
    model, tokenizer = Model(arguments.target), Tokenizer(os.path.join(arguments.target, "tiktoken.model"))
    drafts = {"dspark": Draft(arguments.dspark, model), "dflash": Draft(arguments.dflash, model)}
    prompts = choose_prompts(tokenizer, read_lines(arguments.questions))
    tensors = {}
    for k, (name, ids) in enumerate(prompts):
        values = prompt_values(model, tokenizer, drafts, name, ids, detailed=k == 0)
        tensors.update({f"p{k}.{key}": value for key, value in values.items()})
    metadata = {"format": "pt", "chats": json.dumps(_CHATS, ensure_ascii=False), "prompts": json.dumps([name for name, _ in prompts])}
    print(safetensors_file.save(arguments.out, tensors, metadata), "bytes in", arguments.out)


if __name__ == "__main__":
    main()
