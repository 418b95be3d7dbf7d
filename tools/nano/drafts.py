"""Plain reference of the two drafts and of greedy block-parallel speculation, one request at a time, float32.

Greedy speculation emits the target's greedy text whatever the draft proposes. So the target runs once over prompt and greedy text to
give the taps, and `replay` goes through the rounds on that text.
"""
import json
import os

import torch
import torch.nn.functional as F

import safetensors_file
from model import rms_norm


class Draft:
    """A draft and its context: keys (normed, rotated) and values [L, key heads, head dim] of every layer for L committed tokens"""

    def __init__(self, folder, target):
        with open(os.path.join(folder, "config.json")) as file:
            c = json.load(file)
        stored = safetensors_file.load(os.path.join(folder, "model.safetensors"))
        self.weights = {name: value.float() for name, value in stored.items()}
        self.layers, self.eps = c["num_hidden_layers"], c["rms_norm_eps"]
        self.query_heads, self.key_heads, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.window, self.theta = c["sliding_window"], c["rope_parameters"]["rope_theta"]
        self.taps, self.mask_id = c["dflash_config"]["target_layer_ids"], c["dflash_config"]["mask_token_id"]
        self.has_markov_head = c.get("markov_rank", 0) > 0
        self.embedding, self.head = target.weights["model.embed_tokens.weight"], target.weights["lm_head.weight"]
        self.reset()

    def reset(self):
        self.keys = [torch.zeros(0, self.key_heads, self.dim) for _ in range(self.layers)]
        self.values = [torch.zeros(0, self.key_heads, self.dim) for _ in range(self.layers)]

    @property
    def length(self):
        """Committed tokens, the anchor's position"""
        return self.keys[0].shape[0]

    def _linear(self, x, name):
        return F.linear(x, self.weights[name + ".weight"])

    def _norm(self, x, name):
        return rms_norm(x, self.weights[name + ".weight"], self.eps)

    def _rotate(self, x, positions):
        """By halves: (a, b) -> (a cos - b sin, b cos + a sin)"""
        half = self.dim // 2
        angles = positions[:, None].float() * self.theta**(-torch.arange(half).float() * 2 / self.dim)
        cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)

    def _keys_and_values(self, x, prefix, positions):
        key = self._norm(self._linear(x, prefix + "k_proj").reshape(-1, self.key_heads, self.dim), prefix + "k_norm")
        return self._rotate(key, positions), self._linear(x, prefix + "v_proj").reshape(-1, self.key_heads, self.dim)

    def add_context(self, taps):
        """taps: [T, h] of every tapped layer in the order of the config, for the next T committed tokens"""
        rows = self._norm(self._linear(torch.cat(taps, -1), "fc"), "hidden_norm")
        positions = torch.arange(self.length, self.length + rows.shape[0])
        for layer in range(self.layers):
            key, value = self._keys_and_values(rows, f"layers.{layer}.self_attn.", positions)
            self.keys[layer] = torch.cat([self.keys[layer], key])
            self.values[layer] = torch.cat([self.values[layer], value])

    def _attend(self, x, layer, positions):
        prefix, rows, length = f"layers.{layer}.self_attn.", x.shape[0], self.length
        query = self._norm(self._linear(x, prefix + "q_proj").reshape(rows, self.query_heads, self.dim), prefix + "q_norm")
        query = self._rotate(query, positions)
        key, value = self._keys_and_values(x, prefix, positions)
        keys, values = torch.cat([self.keys[layer], key]), torch.cat([self.values[layer], value])
        at = torch.arange(length + rows)
        visible = (at >= length) | (at > positions[:, None] - self.window)
        heads = []
        for head in range(self.query_heads):
            group = head // (self.query_heads // self.key_heads)
            scores = query[:, head] @ keys[:, group].t() * self.dim**-0.5
            heads.append(torch.softmax(scores.masked_fill(~visible, float("-inf")), -1) @ values[:, group])
        return self._linear(torch.cat(heads, -1), prefix + "o_proj")

    def block(self, anchor, rows):
        """[anchor, MASK, ...] of `rows` rows -> [rows, h], normed"""
        x = self.embedding[torch.tensor([anchor] + [self.mask_id] * (rows - 1))]
        positions = torch.arange(self.length, self.length + rows)
        for layer in range(self.layers):
            prefix = f"layers.{layer}."
            x = x + self._attend(self._norm(x, prefix + "input_layernorm"), layer, positions)
            h = self._norm(x, prefix + "post_attention_layernorm")
            gate, up = self._linear(h, prefix + "mlp.gate_proj"), self._linear(h, prefix + "mlp.up_proj")
            x = x + self._linear(F.silu(gate) * up, prefix + "mlp.down_proj")
        return self._norm(x, "norm")

    def block_rows(self, drafts):
        """Rows of the block that gives this many drafts"""
        return drafts if self.has_markov_head else drafts + 1

    def propose(self, anchor, drafts):
        """-> greedy draft tokens, confidences (None without a confidence head)"""
        y = self.block(anchor, self.block_rows(drafts))
        if not self.has_markov_head:
            return F.linear(y[1:], self.head).argmax(-1).tolist(), None
        tokens, confidences, last = [], [], anchor
        for row, logits in zip(y, F.linear(y, self.head)):
            markov = self.weights["markov_head.markov_w1.weight"][last]
            confidence = self._linear(torch.cat([row, markov]), "confidence_head.proj") + self.weights["confidence_head.proj.bias"]
            confidences.append(float(torch.sigmoid(confidence)))
            last = int((logits + self.weights["markov_head.markov_w2.weight"] @ markov).argmax())
            tokens.append(last)
        return tokens, confidences


def replay(draft, prompt_length, text, taps, drafts):
    """Greedy text after the prompt, taps [prompt + text, h] of every tapped layer -> rounds [(accepted, draft tokens)]

    The first token of the text comes from the prefill and is the first anchor. A round emits what was accepted and one token of the
    target, or less where the text ends.
    """
    draft.reset()
    draft.add_context([tap[:prompt_length] for tap in taps])
    at, rounds = 0, []
    while at < len(text) - 1:
        tokens, _ = draft.propose(text[at], drafts)
        accepted = 0
        for token, right in zip(tokens, text[at + 1:]):
            if token != right:
                break
            accepted += 1
        rounds.append((accepted, tokens))
        emitted = min(accepted + 1, len(text) - 1 - at)
        first = prompt_length + at
        draft.add_context([tap[first:first + emitted] for tap in taps])
        at += emitted
    return rounds
