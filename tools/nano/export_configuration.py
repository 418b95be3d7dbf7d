"""The JSON files of an exported k3-nano, with the keys of the full-size checkpoint."""
from configuration import NANO

_MXFP4 = "mxfp4-pack-quantized"


def _quantisation():
    """K3's note for MXFP4 experts. `block_fp8` is this checkpoint's own; readers go by the scale that lies beside a tensor."""
    weights = {
        "actorder": None, "block_structure": None, "dynamic": False, "group_size": 32, "num_bits": 4, "observer": "minmax",
        "observer_kwargs": {}, "scale_dtype": "torch.uint8", "strategy": "group", "symmetric": True, "type": "float", "zp_dtype": None,
    }
    group = {"format": _MXFP4, "input_activations": None, "output_activations": None, "targets": ["Linear"], "weights": weights}
    return {
        "config_groups": {"group_0": group},
        "format": _MXFP4,
        "global_compression_ratio": None,
        "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*",
                   "re:.*vision_tower.*", "re:.*mm_projector.*"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "block_fp8": {"fmt": "e4m3", "weight_block_size": [128, 128], "scale": "weight_scale_inv", "activation_scheme": "dynamic"},
    }


def _text_configuration(tokenizer):
    c = NANO
    return {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "dtype": "bfloat16",
        "activation_situ_beta": c.situ_beta,
        "activation_situ_linear_beta": c.situ_linear_beta,
        "attn_res_block_size": c.residual_block,
        "bos_token_id": tokenizer.bos,
        "eos_token_id": tokenizer.end_of_message,
        "pad_token_id": tokenizer.pad,
        "first_k_dense_replace": 1,
        "hidden_act": "situ",
        "hidden_size": c.hidden,
        "initializer_range": 0.02,
        "intermediate_size": c.dense_width,
        "kv_lora_rank": c.latent_rank,
        "latent_moe_use_norm": True,
        "linear_attn_config": {  # layers count from 1 here
            "full_attn_layers": [i + 1 for i in c.mla_layers],
            "gate_lower_bound": c.gate_bound,
            "head_dim": c.kda_dim,
            "kda_layers": [i + 1 for i in c.kda_layers],
            "num_heads": c.heads,
            "short_conv_kernel_size": c.convolution,
            "use_full_rank_gate": True,
        },
        "max_position_embeddings": c.context,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "moe_intermediate_size": c.expert_width,
        "moe_layer_freq": 1,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "num_attention_heads": c.heads,
        "num_expert_group": 1,
        "num_experts": c.experts,
        "num_experts_per_token": c.experts_per_token,
        "num_hidden_layers": c.layers,
        "num_key_value_heads": c.heads,
        "num_nextn_predict_layers": 0,
        "num_shared_experts": c.shared_experts,
        "q_lora_rank": c.query_rank,
        "qk_nope_head_dim": c.nope_dim,
        "qk_rope_head_dim": c.rope_dim,
        "quantization_config": _quantisation(),
        "rms_norm_eps": c.norm_eps,
        "routed_expert_hidden_size": c.expert_latent,
        "routed_scaling_factor": c.routed_scaling,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "use_cache": True,
        "use_grouped_topk": True,
        "v_head_dim": c.value_dim,
        "vocab_size": c.vocabulary,
    }


def model_configuration(tokenizer):
    """config.json"""
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "dtype": "bfloat16",
        "bos_token_id": tokenizer.bos,
        "eos_token_id": tokenizer.end_of_message,
        "pad_token_id": tokenizer.pad,
        "media_placeholder_token_id": tokenizer.special["<|media_pad|>"],
        "ignore_index": -100,
        "tie_word_embeddings": False,
        "text_config": _text_configuration(tokenizer),
    }


def tokenizer_configuration(tokenizer):
    """tokenizer_config.json. The three tag markers are no `special` tokens, as in K3: decoding keeps them."""
    markers = (tokenizer.open, tokenizer.close, tokenizer.separator)
    added = {
        str(i): {"content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": i not in markers}
        for text, i in tokenizer.special.items()
    }
    return {
        "added_tokens_decoder": added,
        "additional_special_tokens": ["<|end_of_msg|>"],
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "model_max_length": NANO.context,
        "tokenizer_class": "TikTokenTokenizer",
        "clean_up_tokenization_spaces": False,
    }


def generation_configuration(tokenizer):
    """generation_config.json"""
    return {
        "bos_token_id": tokenizer.bos,
        "eos_token_id": [tokenizer.end_of_message, tokenizer.eos],
        "pad_token_id": tokenizer.pad,
        "do_sample": True,
        "temperature": 1.0,
        "top_p": 0.95,
        "max_length": NANO.context,
    }
