"""The trained parameters: initial values, which stored format each takes, and the per-layer tensors that the forward pass reads.

Parameters of one kind are stacked over the layers that have them: `kda.*` [9, ...], `mla.*` [4, ...], `dense.*` [1, ...], `moe.*`
[12, ...], `layer.*` [13, ...]; `embed`, `head`, `norm` and `output_attn_res_*` stand alone. Matrices are [out, in] and named as in the
checkpoint.
"""
import json
import os

import torch

import formats
import safetensors_file
from configuration import COMPUTE_TYPE, NANO

KDA_INPUTS = ("q_proj", "k_proj", "v_proj", "g_proj")
KDA_CONVOLUTIONS = ("q_conv1d", "k_conv1d", "v_conv1d")
MLA_MATRICES = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "g_proj", "o_proj")
DENSE_MATRICES = ("gate_proj", "up_proj", "down_proj")
LAYER_NORMS = ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm")
LAYER_SCORERS = ("self_attention_res_proj", "mlp_res_proj")

FP8_NAMES = frozenset(
    [f"kda.{name}" for name in KDA_INPUTS + ("o_proj",)] + [f"mla.{name}" for name in MLA_MATRICES]
    + [f"dense.{name}" for name in DENSE_MATRICES]
    + ["moe.routed_expert_down_proj", "moe.routed_expert_up_proj", "moe.shared_gate", "moe.shared_up", "moe.shared_down"])
MXFP4_NAMES = frozenset(["moe.w1", "moe.w2", "moe.w3"])
FLOAT32_NAMES = frozenset(["kda.A_log", "kda.dt_bias", "kda.o_norm", "moe.bias"] + [f"kda.{name}" for name in KDA_CONVOLUTIONS])
# All else is stored as BF16.

MUON_NAMES = FP8_NAMES | MXFP4_NAMES | {"kda.f_a_proj", "kda.f_b_proj"}
# Moved by the load of the experts, not by a gradient.
FROZEN_NAMES = frozenset(["moe.bias"])
# Stacks of matrices that enter float32 arithmetic.
_KEPT_FLOAT32 = frozenset([f"kda.{name}" for name in KDA_CONVOLUTIONS] + ["moe.gate"])


def initial_parameters(seed=0):
    """name -> float32 tensor. Matrices: normal, variance gain^2 / inputs, less gain where a sublayer writes to the stream."""
    c, generator = NANO, torch.Generator().manual_seed(seed)
    hidden, inner = c.hidden, c.heads * c.kda_dim
    kda, mla, moe = len(c.kda_layers), len(c.mla_layers), c.layers - 1
    parameters = {}

    def normal(name, *shape, scale):
        parameters[name] = torch.randn(*shape, generator=generator) * scale

    def matrix(name, *shape, gain=1.0):
        normal(name, *shape, scale=gain)
        parameters[name] *= shape[-1]**-0.5

    def uniform(*shape):
        return torch.rand(*shape, generator=generator)

    def constant(name, value, *shape):
        parameters[name] = torch.full(shape, float(value))

    for name in KDA_INPUTS:
        matrix(f"kda.{name}", kda, inner, hidden)
    matrix("kda.o_proj", kda, hidden, inner, gain=0.5)
    matrix("kda.f_a_proj", kda, c.kda_dim, hidden)
    matrix("kda.f_b_proj", kda, inner, c.kda_dim, gain=0.5)
    matrix("kda.b_proj", kda, c.heads, hidden)
    for name in KDA_CONVOLUTIONS:
        normal(f"kda.{name}", kda, inner, c.convolution, scale=0.2)
        parameters[f"kda.{name}"][:, :, -1] += 0.7  # mostly the current token
    parameters["kda.A_log"] = torch.log(uniform(kda, c.heads) * 1.5 + 0.5)
    parameters["kda.dt_bias"] = uniform(kda, inner) * 6.0 - 7.0  # decay per token from about 0.5 to 0.999
    constant("kda.o_norm", 1, kda, c.kda_dim)

    matrix("mla.q_a_proj", mla, c.query_rank, hidden)
    constant("mla.q_a_layernorm", 1, mla, c.query_rank)
    matrix("mla.q_b_proj", mla, c.heads * c.query_dim, c.query_rank)
    matrix("mla.kv_a_proj_with_mqa", mla, c.latent_rank + c.rope_dim, hidden)
    constant("mla.kv_a_layernorm", 1, mla, c.latent_rank)
    matrix("mla.kv_b_proj", mla, c.heads * (c.nope_dim + c.value_dim), c.latent_rank)
    matrix("mla.g_proj", mla, c.heads * c.value_dim, hidden)
    matrix("mla.o_proj", mla, hidden, c.heads * c.value_dim, gain=0.5)

    matrix("dense.gate_proj", 1, c.dense_width, hidden)
    matrix("dense.up_proj", 1, c.dense_width, hidden)
    matrix("dense.down_proj", 1, hidden, c.dense_width, gain=0.5)

    matrix("moe.gate", moe, c.experts, hidden)
    constant("moe.bias", 0, moe, c.experts)
    matrix("moe.routed_expert_down_proj", moe, c.expert_latent, hidden)
    matrix("moe.routed_expert_up_proj", moe, hidden, c.expert_latent, gain=0.3)
    constant("moe.routed_expert_norm", 1, moe, c.expert_latent)
    shared = c.shared_experts * c.expert_width
    matrix("moe.shared_gate", moe, shared, hidden)
    matrix("moe.shared_up", moe, shared, hidden)
    matrix("moe.shared_down", moe, hidden, shared, gain=0.5)
    matrix("moe.w1", moe, c.experts, c.expert_width, c.expert_latent)
    matrix("moe.w3", moe, c.experts, c.expert_width, c.expert_latent)
    matrix("moe.w2", moe, c.experts, c.expert_latent, c.expert_width)

    for name in LAYER_NORMS:
        constant(f"layer.{name}", 1, c.layers, hidden)
    for name in LAYER_SCORERS:
        normal(f"layer.{name}", c.layers, hidden, scale=0.02)
    constant("norm", 1, hidden)
    constant("output_attn_res_norm", 1, hidden)
    normal("output_attn_res_proj", hidden, scale=0.02)
    normal("embed", c.vocabulary, hidden, scale=0.5)
    matrix("head", c.vocabulary, hidden)
    return parameters


def stored_value(name, value):
    """float32 value that the exported file reads back as"""
    if name in FP8_NAMES:
        return formats.fp8_round(value)
    if name in MXFP4_NAMES:
        return formats.mx_round(value)
    if name in FLOAT32_NAMES:
        return value
    return value.to(torch.bfloat16).float()


def layer_tensors(parameters, quantised):
    """Parameters -> what `network.forward` reads: stacks are split into tuples over layers, matrices are in the compute type, matrices
    that read the same input are joined.

    quantised: every value is replaced by its stored value; the gradient passes straight through.
    """
    values = {}
    for name, value in parameters.items():
        if quantised:
            with torch.no_grad():
                rounding = stored_value(name, value) - value
            value = value + rounding
        if (value.dim() >= 3 and name not in _KEPT_FLOAT32) or name == "head":
            value = value.to(COMPUTE_TYPE)
        values[name] = value

    def joined(kind, names):
        return torch.cat([values[f"{kind}.{name}"] for name in names], 1)

    values["kda.qkvg"] = joined("kda", KDA_INPUTS)
    values["kda.convolution"] = joined("kda", KDA_CONVOLUTIONS)
    values["dense.gate_up"] = joined("dense", ("gate_proj", "up_proj"))
    values["moe.shared_gate_up"] = joined("moe", ("shared_gate", "shared_up"))
    # All experts as one wide MLP: [gates of all | ups of all] and the matching down matrix.
    values["moe.experts_in"] = torch.cat([values["moe.w1"].flatten(1, 2), values["moe.w3"].flatten(1, 2)], 1)
    values["moe.experts_out"] = values["moe.w2"].transpose(1, 2).flatten(2)
    return {name: value.unbind(0) if "." in name else value for name, value in values.items()}


def save(parameters, folder, record):
    """Writes parameters.safetensors in float32 and training.json, the record of the run."""
    os.makedirs(folder, exist_ok=True)
    safetensors_file.save(os.path.join(folder, "parameters.safetensors"), parameters)
    with open(os.path.join(folder, "training.json"), "w") as file:
        json.dump(record, file, indent=1)


def load(folder):
    """name -> float32 tensor, in the order of `initial_parameters`"""
    stored = safetensors_file.load(os.path.join(folder, "parameters.safetensors"))
    return {name: stored[name] for name in initial_parameters()}
