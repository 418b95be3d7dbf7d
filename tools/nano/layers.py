"""The parts of a layer for training: one flat row of N tokens of packed documents, everything but the KDA walk and attention itself.

Every part starts from the float32 stream. Norms, gates, decays, the router and softmax are float32; matrix products take the compute
type. These functions hold no state and can be compiled one by one. h = hidden, H = heads, D = 128.
"""
import torch
import torch.nn.functional as F

from configuration import CHUNK, COMPUTE_TYPE, NANO

_UNIT_EPS = 1e-6


def rms_norm(x, weight, eps=NANO.norm_eps):
    x = x.float()
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight).to(COMPUTE_TYPE)


def situ(gate, up):
    """a tanh(g / a) sigmoid(g) * b tanh(u / b), a = 4, b = 25"""
    gate, up = gate.float(), up.float()
    a, b = NANO.situ_beta, NANO.situ_linear_beta
    return (a * torch.tanh(gate * (1 / a)) * torch.sigmoid(gate) * (b * torch.tanh(up * (1 / b)))).to(COMPUTE_TYPE)


def gated_mlp(x, gate_up, down):
    """gate_up [2 w, in]: gates in the first half of the rows"""
    gate, up = F.linear(x, gate_up).chunk(2, -1)
    return F.linear(situ(gate, up), down)


def residual_mix(bank, prefix, norm, scorer):
    """Softmax over the banked streams and the current one of <rms_norm(stream) * norm, scorer>; their weighted sum [N, h]."""
    streams = torch.stack(list(bank) + [prefix])
    normed = streams * torch.rsqrt(streams.pow(2).mean(-1, keepdim=True) + NANO.norm_eps)
    scores = (normed * (norm * scorer)).sum(-1)
    return (torch.softmax(scores, 0).unsqueeze(-1) * streams).sum(0)


# ---------------------------------------------------------------------------------------------- KDA
def _chunked(x):
    """[N, H D] -> [M, H, 16, D]"""
    return x.unflatten(-1, (NANO.heads, NANO.kda_dim)).unflatten(0, (-1, CHUNK)).transpose(1, 2)


def _unit(x):
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + _UNIT_EPS)


def short_convolution(x, taps, positions):
    """SiLU of the causal convolution over 4 tokens of the same document. x [N, C]; taps [C, 4], the last for the current token."""
    last = taps.shape[1] - 1
    total = x * taps[:, last]
    for back in range(1, last + 1):
        inside = (positions >= back).unsqueeze(-1)
        total = total + F.pad(x, (0, 0, back, 0))[:x.shape[0]] * (taps[:, last - back] * inside)
    return F.silu(total)


def kda_before(x, norm, qkvg, f_a, f_b, b, convolution, a_log, dt_bias, positions):
    """Everything up to the inverse. -> query, key, key e^G, value, P, A, beta, decay, output gate, in the terms of `kda_scan.py`.

    G is the cumulative log decay inside a chunk; P[r, s] = <q_r e^(G_r), k_s e^(-G_s)> for s <= r and A[r, s] = beta_r <k_r e^(G_r),
    k_s e^(-G_s)> for s < r. Both exponents are taken relative to the chunk's middle, so that none exceeds 8 * 5.
    """
    heads, dim = NANO.heads, NANO.kda_dim
    inner = heads * dim
    h = rms_norm(x, norm)
    projected = F.linear(h, qkvg)
    qkv, gate = projected[:, :3 * inner].float(), projected[:, 3 * inner:]
    q, k, v = (_chunked(part) for part in short_convolution(qkv, convolution, positions).split(inner, -1))
    q, k = _unit(q) * dim**-0.5, _unit(k)
    f = F.linear(F.linear(h, f_a), f_b).float() + dt_bias
    log_decay = _chunked(NANO.gate_bound * torch.sigmoid(f * a_log.exp().repeat_interleave(dim)))
    beta = torch.sigmoid(F.linear(h, b).float()).unflatten(0, (-1, CHUNK)).transpose(1, 2)  # [M, H, 16]

    total = torch.cumsum(log_decay, 2)
    middle, end = total[:, :, CHUNK // 2:CHUNK // 2 + 1], total[:, :, -1:]
    grow = torch.exp(total - middle)
    queries_and_keys = torch.cat([q * grow, k * grow], 2).to(COMPUTE_TYPE)
    shrunk = (k * torch.exp(middle - total)).to(COMPUTE_TYPE)
    products = torch.bmm(queries_and_keys.flatten(0, 1), shrunk.flatten(0, 1).transpose(1, 2)).unflatten(0, (-1, heads)).float()
    inside = torch.tril(products[:, :, :CHUNK]).to(COMPUTE_TYPE).contiguous()
    lower = torch.tril(products[:, :, CHUNK:], -1) * beta.unsqueeze(-1)

    from_start = torch.exp(total)
    query = (q * from_start).to(COMPUTE_TYPE).contiguous()
    key_from_start = (k * from_start).to(COMPUTE_TYPE)
    key = (k * torch.exp(end - total)).to(COMPUTE_TYPE).contiguous()
    value = v.to(COMPUTE_TYPE).contiguous()
    return query, key, key_from_start, value, inside, lower, beta, torch.exp(end).squeeze(2).contiguous(), gate


def kda_between(inverse, beta, key_from_start, value):
    """T = (I + A)^-1 -> W = T diag(beta) (k e^G), U = T diag(beta) v"""
    heads, dim = NANO.heads, NANO.kda_dim
    scaled = (inverse * beta.unsqueeze(2)).to(COMPUTE_TYPE).flatten(0, 1)
    both = torch.bmm(scaled, torch.cat([key_from_start, value], -1).flatten(0, 1)).unflatten(0, (-1, heads))
    return both[..., :dim].contiguous(), both[..., dim:].contiguous()


def kda_after(output, gate, norm, o_proj):
    """[M, H, 16, D] -> [N, h]: per-head norm, sigmoid gate, output projection"""
    output = output.transpose(1, 2).flatten(0, 1).float()
    output = output * torch.rsqrt(output.pow(2).mean(-1, keepdim=True) + NANO.norm_eps) * norm
    gated = output * torch.sigmoid(gate.float()).reshape(output.shape)
    return F.linear(gated.to(COMPUTE_TYPE).flatten(1), o_proj)


# ---------------------------------------------------------------------------------------------- MLA
def mla_before(x, norm, q_a, q_norm, q_b, kv_a, kv_norm, kv_b, g):
    """Expanded form. -> query, key, value [N, H, 192], output gate [N, H 128]; value is padded from 128 with zeros."""
    c = NANO
    h = rms_norm(x, norm)
    query = F.linear(rms_norm(F.linear(h, q_a), q_norm, c.latent_norm_eps), q_b).unflatten(-1, (c.heads, c.query_dim))
    latent, shared_key = F.linear(h, kv_a).split((c.latent_rank, c.rope_dim), -1)
    expanded = F.linear(rms_norm(latent, kv_norm, c.latent_norm_eps), kv_b).unflatten(-1, (c.heads, c.nope_dim + c.value_dim))
    key = torch.cat([expanded[..., :c.nope_dim], shared_key[:, None].expand(-1, c.heads, -1)], -1)
    value = F.pad(expanded[..., c.nope_dim:], (0, c.query_dim - c.value_dim))
    return query, key, value, F.linear(h, g)


def causal_attention(query, key, value, bounds, longest):
    """Each document by itself. bounds [documents + 1] int32: where each starts, and N. -> [N, H, 192]"""
    scale = NANO.query_dim**-0.5
    if query.is_cuda:
        flash = torch.ops.aten._flash_attention_forward
        return flash(query, key, value, bounds, bounds, longest, longest, 0.0, True, False, scale=scale)[0]
    outputs = []
    for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist()):
        q, k, v = (x[first:end].transpose(0, 1) for x in (query, key, value))
        visible = torch.ones(end - first, end - first, dtype=torch.bool).tril()
        scores = (q @ k.transpose(1, 2) * scale).masked_fill(~visible, float("-inf"))
        outputs.append((scores.softmax(-1) @ v).transpose(0, 1))
    return torch.cat(outputs)


def mla_after(output, gate, o_proj):
    gated = output[..., :NANO.value_dim].float().flatten(1) * torch.sigmoid(gate.float())
    return F.linear(gated.to(COMPUTE_TYPE), o_proj)


# ---------------------------------------------------------------------------------------------- MLPs, head, loss
def dense_mlp(x, norm, gate_up, down):
    return gated_mlp(rms_norm(x, norm), gate_up, down)


def expert_mlp(x, norm, router, bias, down, experts_in, experts_out, latent_norm, up, shared_gate_up, shared_down):
    """Latent mixture of experts plus the shared expert -> [N, h], tokens that chose each expert [experts].

    The experts run densely as one wide MLP whose activations are multiplied with the router's weights, zero where an expert was not
    chosen: values and gradients are those of the sparse form.
    """
    h = rms_norm(x, norm)
    scores = torch.sigmoid(F.linear(h.float(), router))
    chosen = torch.topk(scores.detach() + bias, NANO.experts_per_token, -1).indices
    mask = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
    weights = scores * mask
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * NANO.routed_scaling
    gate, linear = F.linear(F.linear(h, down), experts_in).chunk(2, -1)
    activation = situ(gate, linear).unflatten(-1, (NANO.experts, -1)) * weights.unsqueeze(-1).to(COMPUTE_TYPE)
    routed = rms_norm(F.linear(activation.flatten(1), experts_out), latent_norm)
    return F.linear(routed, up) + gated_mlp(h, shared_gate_up, shared_down), mask.sum(0)


def vocabulary_logits(x, norm, head):
    return F.linear(rms_norm(x, norm), head)


def token_losses(logits, labels):
    """Negative log-likelihoods [N]"""
    return F.cross_entropy(logits.float(), labels, reduction="none")
