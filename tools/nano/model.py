"""Plain reference of the K3 text model, one sequence at a time, float32 throughout, written from the formulas.

Reads an exported checkpoint; weights are widened exactly. KDA is the token-by-token recurrence, MLA has a growing latent cache, experts
run one by one. Shapes: T new tokens, L tokens so far with them, h = hidden, H = heads.
"""
import json
import os

import torch
import torch.nn.functional as F

import formats
import safetensors_file

_UNIT_EPS = 1e-6
# Below this many new tokens MLA runs in its absorbed form, which is cheaper there.
_ABSORBED_BELOW = 16


class ModelConfig:
    """What config.json says; layers count from 0"""

    def __init__(self, folder):
        with open(os.path.join(folder, "config.json")) as file:
            whole = json.load(file)
        c = whole.get("text_config", whole)
        kda = c["linear_attn_config"]
        self.hidden, self.layers, self.vocabulary = c["hidden_size"], c["num_hidden_layers"], c["vocab_size"]
        self.eps, self.latent_eps = c["rms_norm_eps"], c.get("mla_latent_norm_eps", 1e-6)
        self.mla_layers = {i - 1 for i in kda["full_attn_layers"]}
        self.residual_block = c["attn_res_block_size"]
        self.kda_heads, self.kda_dim, self.convolution = kda["num_heads"], kda["head_dim"], kda["short_conv_kernel_size"]
        self.gate_bound = kda["gate_lower_bound"]
        self.heads, self.latent_rank = c["num_attention_heads"], c["kv_lora_rank"]
        self.nope_dim, self.rope_dim, self.value_dim = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        self.dense_layers = c["first_k_dense_replace"]
        self.experts_per_token = c["num_experts_per_token"]
        self.routed_scaling, self.renormalise = c["routed_scaling_factor"], c["moe_renormalize"]
        self.situ_beta, self.situ_linear_beta = c["activation_situ_beta"], c["activation_situ_linear_beta"]


def load_weights(folder):
    """-> {name without `language_model.`: float32 tensor}; FP8 and MXFP4 are dequantised"""
    index = os.path.join(folder, "model.safetensors.index.json")
    files = ["model.safetensors"]
    if os.path.exists(index):
        with open(index) as file:
            files = sorted(set(json.load(file)["weight_map"].values()))
    stored = {}
    for file in files:
        stored.update(safetensors_file.load(os.path.join(folder, file)))
    weights = {}
    for name, tensor in stored.items():
        short = name.removeprefix("language_model.")
        if name.endswith((".weight_scale_inv", ".weight_scale")):
            continue
        if name.endswith(".weight_packed"):
            whole = name.removesuffix("_packed")
            weights[short.removesuffix("_packed")] = formats.mx_unpack(tensor, stored[whole + "_scale"])
        elif tensor.dtype == torch.float8_e4m3fn:
            weights[short] = formats.fp8_unpack(tensor, stored[name + "_scale_inv"])
        else:
            weights[short] = tensor.float()
    return weights


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def unit(x):
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + _UNIT_EPS)


def situ(gate, up, beta, linear_beta):
    return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * (linear_beta * torch.tanh(up / linear_beta))


class State:
    """What a sequence keeps between calls, by layer. Tensors are replaced, never changed in place."""

    def __init__(self, config):
        channels = config.kda_heads * config.kda_dim
        self.inputs = {}  # [3, 3 H D]: the last inputs of the convolution, oldest first, channels q then k then v
        self.kda = {}  # [H, D, D]: head, key, value
        self.latents = {}  # [L, latent rank + 64]: normed latent, shared key
        for layer in range(config.layers):
            if layer in config.mla_layers:
                self.latents[layer] = torch.zeros(0, config.latent_rank + config.rope_dim)
            else:
                self.inputs[layer] = torch.zeros(config.convolution - 1, 3 * channels)
                self.kda[layer] = torch.zeros(config.kda_heads, config.kda_dim, config.kda_dim)


class Model:
    def __init__(self, folder):
        self.config, self.weights = ModelConfig(folder), load_weights(folder)

    def new_state(self):
        return State(self.config)

    def _linear(self, x, name):
        return F.linear(x, self.weights[name + ".weight"])

    def _norm(self, x, name, eps=None):
        return rms_norm(x, self.weights[name + ".weight"], self.config.eps if eps is None else eps)

    def _mix(self, bank, prefix, name):
        """Softmax over streams of <rms_norm(stream), scorer>, weighted sum [T, h]"""
        if not bank:
            return prefix
        streams = torch.stack(bank + [prefix])
        scorer = self.weights[name + "_norm.weight"] * self.weights[name + "_proj.weight"].reshape(-1)
        scores = rms_norm(streams, scorer, self.config.eps).sum(-1)
        return (torch.softmax(scores, 0).unsqueeze(-1) * streams).sum(0)

    def _kda(self, layer, x, state):
        """S <- diag(alpha) S;  S <- S + beta k (v - k^T S)^T;  o = S^T q, for one token after the other"""
        c, prefix = self.config, f"model.layers.{layer}.self_attn."
        tokens, heads, dim = x.shape[0], c.kda_heads, c.kda_dim
        qkv = torch.cat([self._linear(x, prefix + n + "_proj") for n in "qkv"], -1)
        inputs = torch.cat([state.inputs[layer], qkv])
        taps = torch.cat([self.weights[prefix + n + "_conv1d.weight"].squeeze(1) for n in "qkv"])  # the last is the current token's
        mixed = F.silu(sum(inputs[j:j + tokens] * taps[:, j] for j in range(c.convolution)))
        state.inputs[layer] = inputs[tokens:]
        q, k, v = (part.reshape(tokens, heads, dim) for part in mixed.split(heads * dim, -1))
        q, k = unit(q) * dim**-0.5, unit(k)
        f = self._linear(self._linear(x, prefix + "f_a_proj"), prefix + "f_b_proj") + self.weights[prefix + "dt_bias"]
        a = self.weights[prefix + "A_log"][:heads].exp().view(heads, 1)
        alpha = torch.exp(c.gate_bound * torch.sigmoid(a * f.reshape(tokens, heads, dim)))
        beta = torch.sigmoid(self._linear(x, prefix + "b_proj"))
        memory, outputs = state.kda[layer].clone(), []
        for t in range(tokens):
            memory *= alpha[t].unsqueeze(-1)
            error = v[t].unsqueeze(1) - torch.bmm(k[t].unsqueeze(1), memory)
            memory.baddbmm_(k[t].unsqueeze(2), beta[t].view(heads, 1, 1) * error)
            outputs.append(torch.bmm(q[t].unsqueeze(1), memory).squeeze(1))
        state.kda[layer] = memory
        gate = torch.sigmoid(self._linear(x, prefix + "g_proj")).reshape(tokens, heads, dim)
        return self._linear((self._norm(torch.stack(outputs), prefix + "o_norm") * gate).reshape(tokens, -1), prefix + "o_proj")

    def _mla(self, layer, x, state):
        c, prefix = self.config, f"model.layers.{layer}.self_attn."
        tokens = x.shape[0]
        low = self._norm(self._linear(x, prefix + "q_a_proj"), prefix + "q_a_layernorm", c.latent_eps)
        query = self._linear(low, prefix + "q_b_proj").reshape(tokens, c.heads, -1)
        latent, shared_key = self._linear(x, prefix + "kv_a_proj_with_mqa").split((c.latent_rank, c.rope_dim), -1)
        latent = self._norm(latent, prefix + "kv_a_layernorm", c.latent_eps)
        cache = state.latents[layer] = torch.cat([state.latents[layer], torch.cat([latent, shared_key], -1)])
        length = cache.shape[0]
        visible = torch.arange(length)[None] <= torch.arange(length - tokens, length)[:, None]
        attend = self._attend_absorbed if tokens < _ABSORBED_BELOW else self._attend_expanded
        output = attend(query, cache, visible, self.weights[prefix + "kv_b_proj.weight"]).reshape(tokens, -1)
        return self._linear(output * torch.sigmoid(self._linear(x, prefix + "g_proj")), prefix + "o_proj")

    def _attend_expanded(self, query, cache, visible, kv_b):
        """query [T, H, 192], cache [L, latent | 64], visible [T, L] -> [T, H, value dim]"""
        c = self.config
        expanded = F.linear(cache[:, :c.latent_rank], kv_b).reshape(cache.shape[0], c.heads, c.nope_dim + c.value_dim)
        shared_key = cache[:, None, c.latent_rank:].expand(-1, c.heads, -1)
        key = torch.cat([expanded[..., :c.nope_dim], shared_key], -1)
        scores = torch.einsum("thd,lhd->htl", query, key) * query.shape[-1]**-0.5
        weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), -1)
        return torch.einsum("htl,lhd->thd", weights, expanded[..., c.nope_dim:])

    def _attend_absorbed(self, query, cache, visible, kv_b):
        """The same with kv_b applied to queries and results instead of to the cache"""
        c, (tokens, heads, dim), length = self.config, query.shape, cache.shape[0]
        matrices = kv_b.reshape(heads, c.nope_dim + c.value_dim, c.latent_rank)
        absorbed = torch.einsum("thd,hdc->thc", query[..., :c.nope_dim], matrices[:, :c.nope_dim])
        wide = torch.cat([absorbed, query[..., c.nope_dim:]], -1).reshape(tokens * heads, -1)
        scores = (wide @ cache.t() * dim**-0.5).reshape(tokens, heads, length)
        weights = torch.softmax(scores.masked_fill(~visible[:, None], float("-inf")), -1).reshape(tokens * heads, length)
        context = (weights @ cache[:, :c.latent_rank]).reshape(tokens, heads, c.latent_rank)
        return torch.einsum("thc,hvc->thv", context, matrices[:, c.nope_dim:])

    def _gated_mlp(self, x, gate, up, down):
        c = self.config
        return self._linear(situ(self._linear(x, gate), self._linear(x, up), c.situ_beta, c.situ_linear_beta), down)

    def _moe(self, layer, x):
        c, prefix = self.config, f"model.layers.{layer}.block_sparse_moe."
        scores = torch.sigmoid(self._linear(x, prefix + "gate"))
        biased = scores + self.weights[prefix + "gate.e_score_correction_bias"]
        chosen = torch.topk(biased, c.experts_per_token, -1).indices
        weights = scores.gather(-1, chosen)
        if c.renormalise:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        weights = weights * c.routed_scaling
        latent = self._linear(x, prefix + "routed_expert_down_proj")
        routed = torch.zeros_like(latent)
        for expert in chosen.unique().tolist():
            rows, slots = (chosen == expert).nonzero(as_tuple=True)
            w1, w3, w2 = (f"{prefix}experts.{expert}.{n}" for n in ("w1", "w3", "w2"))
            routed.index_add_(0, rows, weights[rows, slots, None] * self._gated_mlp(latent[rows], w1, w3, w2))
        routed = self._linear(self._norm(routed, prefix + "routed_expert_norm"), prefix + "routed_expert_up_proj")
        shared = (prefix + f"shared_experts.{n}_proj" for n in ("gate", "up", "down"))
        return routed + self._gated_mlp(x, *shared)

    def forward(self, ids, state, taps=(), trace=None):
        """New ids (list or 1-D tensor) -> logits [T, V], {layer: tap [T, h]}; the state is advanced.

        The tap of layer l is what layer l + 1 mixes from bank and stream, before its norm. A list given as `trace` receives the stream
        after every layer.
        """
        c = self.config
        prefix = self.weights["model.embed_tokens.weight"][torch.as_tensor(ids, dtype=torch.long)]
        bank, caught = [], {}
        for layer in range(c.layers):
            name = f"model.layers.{layer}."
            x = self._mix(bank, prefix, name + "self_attention_res")
            if layer - 1 in taps:
                caught[layer - 1] = x
            x = self._norm(x, name + "input_layernorm")
            attention = self._mla(layer, x, state) if layer in c.mla_layers else self._kda(layer, x, state)
            if layer % c.residual_block == 0:
                bank = bank + [prefix]
                prefix = attention
            else:
                prefix = prefix + attention
            x = self._norm(self._mix(bank, prefix, name + "mlp_res"), name + "post_attention_layernorm")
            if layer < c.dense_layers:
                prefix = prefix + self._gated_mlp(x, *(f"{name}mlp.{n}_proj" for n in ("gate", "up", "down")))
            else:
                prefix = prefix + self._moe(layer, x)
            if trace is not None:
                trace.append(prefix)
        x = self._norm(self._mix(bank, prefix, "model.output_attn_res"), "model.norm")
        return self._linear(x, "lm_head"), caught

    @torch.no_grad()
    def greedy(self, prompt, limit, stop_ids):
        """-> generated ids, the stop id included, and the margin of the best logit over the second at every step"""
        state = self.new_state()
        logits, _ = self.forward(prompt, state)
        ids, margins = [], []
        while len(ids) < limit:
            best = torch.topk(logits[-1], 2)
            ids.append(int(best.indices[0]))
            margins.append(float(best.values[0] - best.values[1]))
            if ids[-1] in stop_ids:
                break
            logits, _ = self.forward(ids[-1:], state)
        return ids, margins
