"""Forward pass of k3-nano over packed documents, with gradients."""
import torch
import torch.nn.functional as F

import kda_scan
import layers
from configuration import NANO

_PARTS = ("residual_mix", "kda_before", "kda_between", "kda_after", "mla_before", "mla_after", "dense_mlp", "expert_mlp",
          "vocabulary_logits", "token_losses")
_KDA_NAMES = ("qkvg", "f_a_proj", "f_b_proj", "b_proj", "convolution", "A_log", "dt_bias")
_MLA_NAMES = ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "g_proj")
_MOE_NAMES = ("bias", "routed_expert_down_proj", "experts_in", "experts_out", "routed_expert_norm", "routed_expert_up_proj",
              "shared_gate_up", "shared_down")


class Network:
    """The parts of `layers.py`, eager or compiled, put together. Holds no parameters."""

    def __init__(self, compiled=False):
        functions = {name: getattr(layers, name) for name in _PARTS}
        functions["decay_gradient"] = kda_scan.decay_gradient
        if compiled:
            for limit in ("cache_size_limit", "recompile_limit"):  # the name depends on the torch version
                if hasattr(torch._dynamo.config, limit):
                    setattr(torch._dynamo.config, limit, 64)
            functions = {name: torch.compile(function, dynamic=False) for name, function in functions.items()}
        self.parts = functions

    def forward(self, tensors, batch, taps=()):
        """tensors: from `parameters.layer_tensors`; batch: `batches.Batch` -> logits [N, V], loads, {layer: tap [N, h]}.

        loads[i] [experts]: tokens of each expert in MoE layer i. The tap of layer l is what layer l + 1 mixes from bank and stream,
        before its norm.
        """
        stream, bank, loads, caught = F.embedding(batch.ids, tensors["embed"]), [], [], {}
        for layer in range(NANO.layers):
            x = self._mix(tensors, bank, stream, layer, "self_attention_res") if bank else stream
            if layer - 1 in taps:
                caught[layer - 1] = x
            attention = (self._mla if layer in NANO.mla_layers else self._kda)(tensors, batch, layer, x).float()
            if layer % NANO.residual_block == 0:
                bank.append(stream)
                stream = attention
            else:
                stream = stream + attention
            x = self._mix(tensors, bank, stream, layer, "mlp_res")
            stream = stream + self._mlp(tensors, layer, x, loads).float()
        x = self.parts["residual_mix"](tuple(bank), stream, tensors["output_attn_res_norm"], tensors["output_attn_res_proj"])
        return self.parts["vocabulary_logits"](x, tensors["norm"], tensors["head"]), loads, caught

    def token_losses(self, logits, labels):
        return self.parts["token_losses"](logits, labels)

    def _mix(self, tensors, bank, stream, layer, name):
        return self.parts["residual_mix"](tuple(bank), stream, tensors[f"layer.{name}_norm"][layer], tensors[f"layer.{name}_proj"][layer])

    def _kda(self, tensors, batch, layer, x):
        i = NANO.kda_layers.index(layer)
        weights = (tensors[f"kda.{name}"][i] for name in _KDA_NAMES)
        query, key, key_from_start, value, inside, lower, beta, decay, gate = self.parts["kda_before"](
            x, tensors["layer.input_layernorm"][layer], *weights, batch.positions)
        inverse = kda_scan.UnitLowerInverse.apply(lower)
        write, value = self.parts["kda_between"](inverse, beta, key_from_start, value)
        output = kda_scan.walk(query, key, write, value, inside, decay, batch.chunk_bounds, self.parts["decay_gradient"])
        return self.parts["kda_after"](output, gate, tensors["kda.o_norm"][i], tensors["kda.o_proj"][i])

    def _mla(self, tensors, batch, layer, x):
        i = NANO.mla_layers.index(layer)
        weights = (tensors[f"mla.{name}"][i] for name in _MLA_NAMES)
        query, key, value, gate = self.parts["mla_before"](x, tensors["layer.input_layernorm"][layer], *weights)
        output = layers.causal_attention(query, key, value, batch.bounds, batch.longest)
        return self.parts["mla_after"](output, gate, tensors["mla.o_proj"][i])

    def _mlp(self, tensors, layer, x, loads):
        norm = tensors["layer.post_attention_layernorm"][layer]
        if layer == 0:
            return self.parts["dense_mlp"](x, norm, tensors["dense.gate_up"][0], tensors["dense.down_proj"][0])
        i = layer - 1
        weights = (tensors[f"moe.{name}"][i] for name in _MOE_NAMES)
        output, load = self.parts["expert_mlp"](x, norm, tensors["moe.gate"][i].float(), *weights)
        loads.append(load)
        return output
