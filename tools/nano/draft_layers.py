"""Shapes, initial values, forward pass and loss of the two drafts, for training.

A draft proposes the tokens behind an anchor at once. It reads projected taps of the target at the positions before the anchor (context
rows, at most `window` back) and a block of rows [anchor, MASK, MASK, ...] that see each other in both directions. DSpark's row j
predicts the token behind it, corrected by a Markov head that looks at the token before; DFlash's row j predicts its own token and
row 0 is not used. Shapes: N tokens, A anchors, R block rows, h = hidden of the target.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from configuration import NANO

NORM_EPS = 1e-5
ROPE_THETA = 10000.0
HEAD_DIM = 64
MLP_WIDTH = 512
POSITION_DECAY = 4.0  # draft k weighs exp(-k / 4) in the loss
SCORED_DRAFTS = 4


@dataclass(frozen=True)
class DraftShape:
    architecture: str
    layers: int
    query_heads: int
    key_heads: int
    window: int
    block: int  # rows of the full block
    scored_block: int  # rows that give 4 drafts
    taps: tuple  # target layers, from 0
    mask_offset: int  # of the mask token in the special slots
    markov_rank: int  # 0: no Markov head, no confidence head
    distance_share: float  # of the distribution distance in the loss, the rest is cross entropy

    @property
    def predicts_next(self):
        """Row j predicts the token behind it, not its own"""
        return self.markov_rank > 0


DRAFTS = {
    "dspark": DraftShape("DSparkDraftModel", layers=2, query_heads=8, key_heads=2, window=256, block=7, scored_block=4,
                         taps=(2, 7, 10), mask_offset=240, markov_rank=64, distance_share=0.9),
    "dflash": DraftShape("DFlashDraftModel", layers=3, query_heads=8, key_heads=4, window=512, block=8, scored_block=5,
                         taps=(1, 5, 8, 11), mask_offset=8, markov_rank=0, distance_share=0.5),
}


def is_muon(name):
    return name == "fc.weight" or (name.endswith("_proj.weight") and "confidence" not in name)


def initial_parameters(shape, seed):
    """Checkpoint name -> float32 tensor"""
    generator, hidden = torch.Generator().manual_seed(seed), NANO.hidden
    parameters = {}

    def normal(name, rows, columns, scale):
        parameters[name + ".weight"] = torch.randn(rows, columns, generator=generator) * scale

    def matrix(name, outputs, inputs, gain=1.0):
        normal(name, outputs, inputs, gain)
        parameters[name + ".weight"] *= inputs**-0.5

    def ones(name, size):
        parameters[name + ".weight"] = torch.ones(size)

    matrix("fc", hidden, len(shape.taps) * hidden)
    ones("hidden_norm", hidden)
    ones("norm", hidden)
    for layer in range(shape.layers):
        prefix = f"layers.{layer}."
        ones(prefix + "input_layernorm", hidden)
        ones(prefix + "post_attention_layernorm", hidden)
        matrix(prefix + "self_attn.q_proj", shape.query_heads * HEAD_DIM, hidden)
        matrix(prefix + "self_attn.k_proj", shape.key_heads * HEAD_DIM, hidden)
        matrix(prefix + "self_attn.v_proj", shape.key_heads * HEAD_DIM, hidden)
        matrix(prefix + "self_attn.o_proj", hidden, shape.query_heads * HEAD_DIM, 0.5)
        ones(prefix + "self_attn.q_norm", HEAD_DIM)
        ones(prefix + "self_attn.k_norm", HEAD_DIM)
        matrix(prefix + "mlp.gate_proj", MLP_WIDTH, hidden)
        matrix(prefix + "mlp.up_proj", MLP_WIDTH, hidden)
        matrix(prefix + "mlp.down_proj", hidden, MLP_WIDTH, 0.5)
    if shape.markov_rank:
        normal("markov_head.markov_w1", NANO.vocabulary, shape.markov_rank, 0.5)
        normal("markov_head.markov_w2", NANO.vocabulary, shape.markov_rank, 0.02)
        parameters["confidence_head.proj.weight"] = torch.zeros(1, hidden + shape.markov_rank)
        parameters["confidence_head.proj.bias"] = torch.zeros(1)
    return parameters


def rms_norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + NORM_EPS) * weight


def rotate(x, positions):
    """Rotary embedding by halves over the whole head. x [..., heads, d], positions [...]"""
    dim = x.shape[-1]
    frequencies = ROPE_THETA**(-torch.arange(0, dim, 2, device=x.device, dtype=torch.float32) / dim)
    angles = (positions.float().unsqueeze(-1) * frequencies).unsqueeze(-2)
    cosine, sine = angles.cos(), angles.sin()
    low, high = x.chunk(2, -1)
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], -1)


def _context(shape, anchors, positions, rows):
    """-> indices [A, window] of the tokens before each anchor, visibility [A, rows, window + rows]

    A row sees the context tokens of its own document at positions above its own - window, and every row of its block.
    """
    window = shape.window
    offsets = torch.arange(window, device=anchors.device)
    row = torch.arange(rows, device=anchors.device)
    inside = positions[anchors][:, None] - window + offsets >= 0
    context = inside[:, None] & (offsets > row[:, None])
    block = torch.ones(anchors.shape[0], rows, rows, dtype=torch.bool, device=anchors.device)
    return (anchors[:, None] - window + offsets).clamp(min=0), torch.cat([context, block], -1)


def block_forward(parameters, shape, taps, anchors, ids, positions, embedding, mask_id, rows):
    """taps [N, taps h] of all tokens, anchors [A], ids and positions [N] -> [A, R, h], normed"""
    context = rms_norm(F.linear(taps, parameters["fc.weight"]), parameters["hidden_norm.weight"])
    indices, visible = _context(shape, anchors, positions, rows)
    block_ids = torch.full((anchors.shape[0], rows), mask_id, device=anchors.device)
    block_ids[:, 0] = ids[anchors]
    x = F.embedding(block_ids, embedding)
    block_positions = positions[anchors][:, None] + torch.arange(rows, device=anchors.device)
    group = shape.query_heads // shape.key_heads
    for layer in range(shape.layers):

        def linear(value, name):
            return F.linear(value, parameters[f"layers.{layer}.{name}.weight"])

        def heads(value, name, count):
            return linear(value, f"self_attn.{name}_proj").unflatten(-1, (count, HEAD_DIM))

        def norm(value, name):
            return rms_norm(value, parameters[f"layers.{layer}.{name}.weight"])

        def keys(value, at):
            return rotate(norm(heads(value, "k", shape.key_heads), "self_attn.k_norm"), at)

        h = norm(x, "input_layernorm")
        query = rotate(norm(heads(h, "q", shape.query_heads), "self_attn.q_norm"), block_positions)
        key = torch.cat([keys(context, positions)[indices], keys(h, block_positions)], 1)
        value = torch.cat([heads(context, "v", shape.key_heads)[indices], heads(h, "v", shape.key_heads)], 1)
        scores = torch.einsum("arkgd,alkd->akgrl", query.unflatten(2, (shape.key_heads, group)), key) * HEAD_DIM**-0.5
        weights = torch.softmax(scores.masked_fill(~visible[:, None, None], -1e30), -1)
        x = x + linear(torch.einsum("akgrl,alkd->arkgd", weights, value).flatten(2), "self_attn.o_proj")
        h = norm(x, "post_attention_layernorm")
        x = x + linear(F.silu(linear(h, "mlp.gate_proj")) * linear(h, "mlp.up_proj"), "mlp.down_proj")
    return rms_norm(x, parameters["norm.weight"])


def draft_loss(parameters, shape, batch, taps, target_logits, anchors, embedding, head, mask_id, rows):
    """-> loss, expected greedy acceptance length for 4 drafts, mean overlap of the distributions

    The draft at distance k is compared with the target's distribution there: share * |q - p|_1 + (1 - share) * cross entropy with the
    target's best token, weighted by exp(-k / 4), as long as the text is an answer. The confidence head learns the overlap
    1 - |q - p|_1 / 2, without moving the rest.
    """
    y = block_forward(parameters, shape, taps, anchors, batch.ids, batch.positions, embedding, mask_id, rows)
    if not shape.predicts_next:
        y = y[:, 1:]
    drafts, size = y.shape[1], batch.ids.shape[0]
    source = anchors[:, None] + torch.arange(drafts, device=anchors.device)  # whose label is drafted
    inside = source < size
    source = source.clamp(max=size - 1)
    valid = torch.cumprod((batch.answers[source] & inside).float(), 1)
    with torch.no_grad():
        target = torch.softmax(target_logits[source].float(), -1)
        best = target.argmax(-1)
    logits = F.linear(y, head)
    if shape.markov_rank:
        markov = F.embedding(batch.ids[source], parameters["markov_head.markov_w1.weight"])
        logits = logits + F.linear(markov, parameters["markov_head.markov_w2.weight"])
    log_draft = torch.log_softmax(logits, -1)
    distance = (log_draft.exp() - target).abs().sum(-1)
    cross_entropy = -log_draft.gather(-1, best.unsqueeze(-1)).squeeze(-1)
    weights = valid * torch.exp(-torch.arange(drafts, device=anchors.device) / POSITION_DECAY)

    def mean(values):
        return (values * weights).sum() / weights.sum()

    overlap = (1 - 0.5 * distance).detach()
    loss = mean(shape.distance_share * distance + (1 - shape.distance_share) * cross_entropy)
    if shape.markov_rank:
        confidence = F.linear(torch.cat([y, markov], -1).detach(), parameters["confidence_head.proj.weight"],
                              parameters["confidence_head.proj.bias"]).squeeze(-1)
        loss = loss + mean(F.binary_cross_entropy_with_logits(confidence, overlap.clamp(0, 1), reduction="none"))
    with torch.no_grad():
        accepted = torch.cumprod((logits.argmax(-1) == best).float() * valid, 1)
        whole = valid[:, -1] > 0
        acceptance = 1 + accepted[whole][:, :SCORED_DRAFTS].sum(1).mean()
    return loss, acceptance, overlap[valid > 0].mean()
