"""Draft checkpoints, and the way back from an exported target to trained parameters."""
import os

import torch

import model
import parameters as nano
import safetensors_file
from configuration import NANO
from draft_layers import DRAFTS, HEAD_DIM, MLP_WIDTH, NORM_EPS, ROPE_THETA
from export import write_json


def draft_configuration(kind, tokenizer):
    """config.json of a draft"""
    shape = DRAFTS[kind]
    configuration = {
        "architectures": [shape.architecture],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "aux_hidden_stream": "attn_res",
        "block_size": shape.block,
        "bos_token_id": tokenizer.bos,
        "eos_token_id": tokenizer.end_of_message,
        "dtype": "bfloat16",
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": NANO.hidden,
        "initializer_range": 0.02,
        "intermediate_size": MLP_WIDTH,
        "is_causal": False,
        "layer_types": ["sliding_attention"] * shape.layers,
        "max_position_embeddings": NANO.context,
        "num_attention_heads": shape.query_heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.key_heads,
        "num_target_layers": NANO.layers,
        "rms_norm_eps": NORM_EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "rope_theta": ROPE_THETA,
        "sliding_window": shape.window,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": NANO.vocabulary,
        "dflash_config": {"target_layer_ids": list(shape.taps), "mask_token_id": tokenizer.first_special + shape.mask_offset},
    }
    if shape.markov_rank:
        configuration.update(markov_rank=shape.markov_rank, markov_head_type="vanilla", enable_confidence_head=True,
                             confidence_head_with_markov=True)
    return configuration


def export_draft(parameters, kind, folder, tokenizer):
    """Writes model.safetensors, all BF16, and config.json -> bytes of the file"""
    os.makedirs(folder, exist_ok=True)
    tensors = {name: value.detach().cpu().to(torch.bfloat16) for name, value in parameters.items()}
    write_json(folder, "config.json", draft_configuration(kind, tokenizer))
    return safetensors_file.save(os.path.join(folder, "model.safetensors"), tensors, {"format": "pt"})


def _moe_name(key, expert=None):
    if expert is not None:
        return f"experts.{expert}.{key}.weight"
    if key == "bias":
        return "gate.e_score_correction_bias"
    if key.startswith("shared_"):
        return f"shared_experts.{key.removeprefix('shared_')}_proj.weight"
    return f"{key}.weight"


def target_parameters(folder):
    """Exported target -> its parameters as `parameters.py` names and stacks them, in dequantised values"""
    weights = model.load_weights(folder)
    single = {"embed": "model.embed_tokens.weight", "head": "lm_head.weight"}

    def layer_value(kind, key, layer):
        prefix = f"model.layers.{layer}."
        if kind == "kda" and key in ("A_log", "dt_bias"):
            value = weights[f"{prefix}self_attn.{key}"]
            return value[:NANO.heads] if key == "A_log" else value
        if kind in ("kda", "mla"):
            return weights[f"{prefix}self_attn.{key}.weight"]
        if kind == "dense":
            return weights[f"{prefix}mlp.{key}.weight"]
        if kind == "layer":
            return weights[f"{prefix}{key}.weight"]
        prefix += "block_sparse_moe."
        if key in ("w1", "w2", "w3"):
            return torch.stack([weights[prefix + _moe_name(key, expert)] for expert in range(NANO.experts)])
        return weights[prefix + _moe_name(key)]

    layers = {"kda": NANO.kda_layers, "mla": NANO.mla_layers, "dense": (0,), "moe": range(1, NANO.layers), "layer": range(NANO.layers)}
    parameters = {}
    for name, like in nano.initial_parameters().items():
        kind, _, key = name.partition(".")
        if key:
            value = torch.stack([layer_value(kind, key, layer) for layer in layers[kind]])
        else:
            value = weights[single.get(name, f"model.{name}.weight")]
        parameters[name] = value.reshape(like.shape)
    return parameters
