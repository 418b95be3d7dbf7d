#!/usr/bin/env python3
"""Makes tests/golden/kimi-linear-tiny: a random Kimi-Linear checkpoint and the logits that Hugging Face transformers computes for it.

    make_kimi_linear.py OUTPUT_FOLDER

Needs torch (CPU) and a transformers that has `kimi_linear` (5.24 was used). Everything is seeded, so the same versions give the same
bytes. Matrices are rounded to bfloat16 and stored so; small vectors stay float32. transformers runs in float32 on the folder as
written, so it reads exactly the bytes that an engine reads.

golden.safetensors: prompt.i.tokens [T], prompt.i.logits [T, V] after each position, prompt.i.greedy_tokens [8] and
prompt.i.greedy_logits [8, V], whose row j chose greedy token j.
"""
import json
import os
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import KimiLinearForCausalLM
from transformers.models.kimi_linear import KimiLinearConfig

SEED = 20261
GREEDY = 8
PROMPT_LENGTHS = (1, 5, 17, 70)

# As the released Kimi-Linear-48B-A3B names things; layer lists count from 1.
CONFIG = {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "dtype": "bfloat16",
    "vocab_size": 160,
    "hidden_size": 64,
    "num_hidden_layers": 7,
    "intermediate_size": 112,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    "model_max_length": 4096,
    "bos_token_id": 156,
    "eos_token_id": 157,
    "pad_token_id": 159,
    "use_cache": True,
    "linear_attn_config": {
        "full_attn_layers": [4, 7],
        "kda_layers": [1, 2, 3, 5, 6],
        "head_dim": 32,
        "num_heads": 3,
        "short_conv_kernel_size": 4,
    },
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 18,
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "mla_use_nope": True,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "moe_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_token": 3,
    "num_shared_experts": 1,
    "num_expert_group": 1,
    "topk_group": 1,
    "use_grouped_topk": True,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "routed_scaling_factor": 2.446,
    "num_nextn_predict_layers": 0,
}


def initialise(model):
    """Random values at which every part of the model matters; the library's defaults (std 0.02, equal gates) hide mistakes."""
    rng = torch.Generator().manual_seed(SEED)

    def normal(shape, std, mean=0.0):
        return torch.randn(shape, generator=rng) * std + mean

    def uniform(shape, low, high):
        return torch.rand(shape, generator=rng) * (high - low) + low

    tensors = dict(model.named_parameters())
    tensors.update({n: b for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")})
    for name, t in sorted(tensors.items()):
        if name.endswith("A_log"):
            value = uniform(t.shape, -0.7, 1.4)
        elif name.endswith("dt_bias"):
            value = uniform(t.shape, -4.0, 1.0)
        elif name.endswith("e_score_correction_bias"):
            value = uniform(t.shape, -0.3, 0.3)
        elif "norm" in name:
            value = normal(t.shape, 0.2, 1.0)
        elif "conv1d" in name:
            value = normal(t.shape, 0.5)
        elif "embed_tokens" in name:
            value = normal(t.shape, 1.0)
        elif "lm_head" in name:
            value = normal(t.shape, 2.0 * t.shape[-1] ** -0.5)
        else:
            value = normal(t.shape, 1.3 * t.shape[-1] ** -0.5)
        if t.dim() >= 2 and not name.endswith("A_log"):
            value = value.to(torch.bfloat16).to(torch.float32)
        t.data.copy_(value)


def write_checkpoint(folder):
    torch.manual_seed(SEED)
    model = KimiLinearForCausalLM(KimiLinearConfig(**CONFIG)).to(torch.float32).eval()
    initialise(model)
    with tempfile.TemporaryDirectory() as temporary:
        model.save_pretrained(temporary)
        stored = load_file(os.path.join(temporary, "model.safetensors"))
    # save_pretrained writes every MLP as block_sparse_moe; the release calls a dense one mlp.
    for layer in range(CONFIG["first_k_dense_replace"]):
        for part in ("gate_proj", "up_proj", "down_proj"):
            old = f"model.layers.{layer}.block_sparse_moe.{part}.weight"
            stored[old.replace("block_sparse_moe", "mlp")] = stored.pop(old)
    for name, t in stored.items():
        if t.dim() >= 2 and not name.endswith("A_log"):
            assert torch.equal(t.to(torch.bfloat16).to(torch.float32), t), name
            stored[name] = t.to(torch.bfloat16).contiguous()
    save_file(stored, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(CONFIG, f, indent=2)
        f.write("\n")


def golden(folder):
    model = KimiLinearForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    rng = torch.Generator().manual_seed(SEED + 1)
    out = {}
    for i, length in enumerate(PROMPT_LENGTHS):
        ids = torch.randint(0, CONFIG["vocab_size"], (length,), generator=rng).tolist()
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0].float()
        out[f"prompt.{i}.tokens"] = torch.tensor(ids, dtype=torch.int32)
        out[f"prompt.{i}.logits"] = logits.contiguous()
        chosen, rows = [], []
        row = logits[-1]
        for _ in range(GREEDY):
            rows.append(row.clone())
            chosen.append(int(row.argmax()))
            top = row.topk(2).values
            print(f"prompt {i}: token {chosen[-1]}, margin {float(top[0] - top[1]):.4f}")
            with torch.no_grad():
                row = model(torch.tensor([ids + chosen]), use_cache=False).logits[0, -1].float()
        out[f"prompt.{i}.greedy_tokens"] = torch.tensor(chosen, dtype=torch.int32)
        out[f"prompt.{i}.greedy_logits"] = torch.stack(rows)
    save_file(out, os.path.join(folder, "golden.safetensors"))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    os.makedirs(sys.argv[1], exist_ok=True)
    write_checkpoint(sys.argv[1])
    golden(sys.argv[1])
