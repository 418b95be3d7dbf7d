#!/usr/bin/env python3
"""Writes trained parameters as a checkpoint in K3's mixed layout: export.py --parameters work/nano --out models/k3-nano

Attention projections, shared experts, latent projections and the dense MLP are block-FP8, routed experts MXFP4, convolutions and
the small KDA tensors F32, all else BF16.
"""
import argparse
import json
import os
import shutil

import torch

import formats
import parameters as nano
import safetensors_file
from configuration import DEFAULT_TOKENIZER, NANO
from export_configuration import generation_configuration, model_configuration, tokenizer_configuration
from tokenizer import Tokenizer

_SHARD_BYTES = 8 * 2**20
_ROOT = "language_model.model."
# K3 stores A_log padded to a multiple of 128 entries.
_A_LOG_MULTIPLE = 128


def stored_tensors(name, key, value):
    """One weight in its stored format: checkpoint name without `.weight`, parameter name, value -> {name: tensor}"""
    if key in nano.FP8_NAMES:
        codes, scales = formats.fp8_pack(value)
        return {f"{name}.weight": codes, f"{name}.weight_scale_inv": scales}
    if key in nano.MXFP4_NAMES:
        packed, scales = formats.mx_pack(value)
        return {f"{name}.weight_packed": packed, f"{name}.weight_scale": scales}
    return {f"{name}.weight": value if key in nano.FLOAT32_NAMES else value.to(torch.bfloat16)}


def _kda_tensors(prefix, parameters, i):
    tensors = {}
    for name in nano.KDA_INPUTS + ("o_proj", "f_a_proj", "f_b_proj", "b_proj", "o_norm"):
        tensors.update(stored_tensors(prefix + name, f"kda.{name}", parameters[f"kda.{name}"][i]))
    for name in nano.KDA_CONVOLUTIONS:
        tensors.update(stored_tensors(prefix + name, f"kda.{name}", parameters[f"kda.{name}"][i].unsqueeze(1)))
    tensors[prefix + "A_log"] = torch.nn.functional.pad(parameters["kda.A_log"][i], (0, -NANO.heads % _A_LOG_MULTIPLE))
    tensors[prefix + "dt_bias"] = parameters["kda.dt_bias"][i]
    return tensors


def _mla_tensors(prefix, parameters, i):
    tensors = {}
    for name in nano.MLA_MATRICES + ("q_a_layernorm", "kv_a_layernorm"):
        tensors.update(stored_tensors(prefix + name, f"mla.{name}", parameters[f"mla.{name}"][i]))
    return tensors


def _moe_tensors(prefix, parameters, i):
    tensors = {prefix + "gate.e_score_correction_bias": parameters["moe.bias"][i]}
    for name in ("gate", "routed_expert_down_proj", "routed_expert_up_proj", "routed_expert_norm"):
        tensors.update(stored_tensors(prefix + name, f"moe.{name}", parameters[f"moe.{name}"][i]))
    for name in ("gate", "up", "down"):
        key = f"moe.shared_{name}"
        tensors.update(stored_tensors(f"{prefix}shared_experts.{name}_proj", key, parameters[key][i]))
    for name in ("w1", "w2", "w3"):
        for expert in range(NANO.experts):
            tensors.update(stored_tensors(f"{prefix}experts.{expert}.{name}", f"moe.{name}", parameters[f"moe.{name}"][i, expert]))
    return tensors


def checkpoint_tensors(parameters):
    """Parameters, float32 on the CPU -> {checkpoint name: tensor in its stored dtype}"""
    tensors = {}
    for name, key in (("embed_tokens", "embed"), ("norm", "norm"), ("output_attn_res_norm", "output_attn_res_norm")):
        tensors.update(stored_tensors(_ROOT + name, key, parameters[key]))
    tensors.update(stored_tensors(_ROOT + "output_attn_res_proj", "output_attn_res_proj", parameters["output_attn_res_proj"][None]))
    tensors.update(stored_tensors("language_model.lm_head", "head", parameters["head"]))
    for layer in range(NANO.layers):
        prefix = f"{_ROOT}layers.{layer}."
        for name in nano.LAYER_NORMS:
            tensors.update(stored_tensors(prefix + name, f"layer.{name}", parameters[f"layer.{name}"][layer]))
        for name in nano.LAYER_SCORERS:
            tensors.update(stored_tensors(prefix + name, f"layer.{name}", parameters[f"layer.{name}"][layer][None]))
        if layer in NANO.mla_layers:
            tensors.update(_mla_tensors(prefix + "self_attn.", parameters, NANO.mla_layers.index(layer)))
        else:
            tensors.update(_kda_tensors(prefix + "self_attn.", parameters, NANO.kda_layers.index(layer)))
        if layer == 0:
            for name in nano.DENSE_MATRICES:
                tensors.update(stored_tensors(f"{prefix}mlp.{name}", f"dense.{name}", parameters[f"dense.{name}"][0]))
        else:
            tensors.update(_moe_tensors(prefix + "block_sparse_moe.", parameters, layer - 1))
    return tensors


def write_json(folder, name, value, **style):
    with open(os.path.join(folder, name), "w") as file:
        json.dump(value, file, **(style or {"indent": 2}))


def write_shards(folder, tensors):
    """Fills shards of at most 8 MiB in the order of the names -> bytes of all tensors"""
    shards, filled = [[]], 0
    for name in sorted(tensors):
        size = safetensors_file.byte_size(tensors[name])
        if filled + size > _SHARD_BYTES and shards[-1]:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    files = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        safetensors_file.save(os.path.join(folder, file), {name: tensors[name] for name in names}, {"format": "pt"})
        files.update({name: file for name in names})
    total = sum(map(safetensors_file.byte_size, tensors.values()))
    write_json(folder, "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": files}, indent=0, sort_keys=True)
    return total


def export_target(parameters, folder, tokenizer_path):
    """Writes the whole checkpoint folder -> bytes of all tensors"""
    os.makedirs(folder, exist_ok=True)
    tokenizer = Tokenizer(tokenizer_path)
    total = write_shards(folder, checkpoint_tensors({name: value.detach().float().cpu() for name, value in parameters.items()}))
    write_json(folder, "config.json", model_configuration(tokenizer))
    write_json(folder, "generation_config.json", generation_configuration(tokenizer))
    write_json(folder, "tokenizer_config.json", tokenizer_configuration(tokenizer), indent=2, ensure_ascii=False)
    copy = os.path.join(folder, "tiktoken.model")
    if os.path.realpath(copy) != os.path.realpath(tokenizer_path):
        shutil.copyfile(tokenizer_path, copy)
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", required=True, help="--out folder of train.py")
    parser.add_argument("--out", required=True, help="checkpoint folder to write")
    parser.add_argument("--tokenizer", default=str(DEFAULT_TOKENIZER), help="tiktoken.model (default: that of models/k3-nano)")
    arguments = parser.parse_args()
    print(export_target(nano.load(arguments.parameters), arguments.out, arguments.tokenizer), "bytes of tensors")


if __name__ == "__main__":
    main()
