"""The sequential part of chunked KDA: a state per document and head walks over the document's chunks.

Shapes, for M chunks of 16 tokens, H heads, D = 128:

    query, key, write   [M, H, 16, D]    q e^G,  k e^(G_end - G),  W = T diag(beta) (k e^G)
    value               [M, H, 16, D]    U = T diag(beta) v
    inner               [M, H, 16, 16]   P, the causal products of queries and keys inside the chunk
    decay               [M, H, D]        e^(G_end)
    bounds              [documents + 1]  int32, chunk number at which each document starts, and M

where G is the cumulative log decay inside a chunk and T = (I + A)^-1 (see `layers.py`). With S [D, D] (key, value), zero at the start of
every document, a chunk does

    delta  = U - W S
    output = (q e^G) S + P delta
    S     <- diag(decay) S + (k e^(G_end - G))^T delta

On a GPU this is a Triton kernel, one program for a document, a head and a half of the value channels; states are float32, products
bfloat16. `walk_in_torch` is the same in plain torch.
"""
import functools

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

_VALUE_BLOCK = 64

if triton is not None:

    @triton.jit
    def _walk_forward(query_ptr, key_ptr, write_ptr, value_ptr, inner_ptr, decay_ptr, output_ptr, delta_ptr, state_ptr, bounds_ptr,
                      HEADS: tl.constexpr, BLOCK: tl.constexpr, KEEP: tl.constexpr):
        """KEEP also stores delta and the state before every chunk, which the backward pass reads."""
        document, head = tl.program_id(0), tl.program_id(1)
        first, end = tl.load(bounds_ptr + document), tl.load(bounds_ptr + document + 1)
        row = tl.arange(0, 16)
        key_channel = tl.arange(0, 128)
        value_channel = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
        row_by_key = row[:, None] * 128 + key_channel[None, :]
        key_by_row = row[None, :] * 128 + key_channel[:, None]
        row_by_value = row[:, None] * 128 + value_channel[None, :]
        key_by_value = key_channel[:, None] * 128 + value_channel[None, :]
        state = tl.zeros([128, BLOCK], dtype=tl.float32)
        for chunk in range(first, end):
            item = (chunk * HEADS + head).to(tl.int64)
            rows = item * (16 * 128)
            narrow = state.to(tl.bfloat16)
            if KEEP:
                tl.store(state_ptr + item * (128 * 128) + key_by_value, narrow)
            value = tl.load(value_ptr + rows + row_by_value).to(tl.float32)
            delta = (value - tl.dot(tl.load(write_ptr + rows + row_by_key), narrow)).to(tl.bfloat16)
            inner = tl.load(inner_ptr + item * 256 + row[:, None] * 16 + row[None, :])
            output = tl.dot(tl.load(query_ptr + rows + row_by_key), narrow) + tl.dot(inner, delta)
            tl.store(output_ptr + rows + row_by_value, output.to(tl.bfloat16))
            if KEEP:
                tl.store(delta_ptr + rows + row_by_value, delta)
            decay = tl.load(decay_ptr + item * 128 + key_channel)
            state = state * decay[:, None] + tl.dot(tl.load(key_ptr + rows + key_by_row), delta)

    @triton.jit
    def _walk_backward(query_ptr, key_ptr, write_ptr, inner_ptr, decay_ptr, output_grad_ptr, delta_grad_ptr, state_grad_ptr, bounds_ptr,
                       HEADS: tl.constexpr, BLOCK: tl.constexpr):
        """From the last chunk to the first. Stores the gradients of delta and of the state behind every chunk."""
        document, head = tl.program_id(0), tl.program_id(1)
        first, end = tl.load(bounds_ptr + document), tl.load(bounds_ptr + document + 1)
        row = tl.arange(0, 16)
        key_channel = tl.arange(0, 128)
        value_channel = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
        row_by_key = row[:, None] * 128 + key_channel[None, :]
        key_by_row = row[None, :] * 128 + key_channel[:, None]
        row_by_value = row[:, None] * 128 + value_channel[None, :]
        key_by_value = key_channel[:, None] * 128 + value_channel[None, :]
        state_grad = tl.zeros([128, BLOCK], dtype=tl.float32)
        for back in range(0, end - first):
            item = ((end - 1 - back) * HEADS + head).to(tl.int64)
            rows = item * (16 * 128)
            narrow = state_grad.to(tl.bfloat16)
            tl.store(state_grad_ptr + item * (128 * 128) + key_by_value, narrow)
            output_grad = tl.load(output_grad_ptr + rows + row_by_value)
            inner_transposed = tl.load(inner_ptr + item * 256 + row[None, :] * 16 + row[:, None])
            delta_grad = tl.dot(inner_transposed, output_grad) + tl.dot(tl.load(key_ptr + rows + row_by_key), narrow)
            delta_grad = delta_grad.to(tl.bfloat16)
            tl.store(delta_grad_ptr + rows + row_by_value, delta_grad)
            decay = tl.load(decay_ptr + item * 128 + key_channel)
            from_output = tl.dot(tl.load(query_ptr + rows + key_by_row), output_grad)
            from_delta = tl.dot(tl.load(write_ptr + rows + key_by_row), delta_grad)
            state_grad = state_grad * decay[:, None] + from_output - from_delta


def decay_gradient(states, state_grads):
    """[M, H, D, D] each -> [M, H, D] float32"""
    return (states.float() * state_grads.float()).sum(-1)


class _Walk(torch.autograd.Function):
    """The Triton walk. Gradients of everything but the state follow from batched products after the backward walk."""

    @staticmethod
    def forward(ctx, query, key, write, value, inner, decay, bounds, keep, decay_gradient_function):
        chunks, heads, _, dim = query.shape
        output = torch.zeros_like(value)
        delta = torch.empty_like(value) if keep else value
        states = torch.empty(chunks, heads, dim, dim, dtype=torch.bfloat16, device=value.device) if keep else value
        grid = (bounds.numel() - 1, heads, dim // _VALUE_BLOCK)
        _walk_forward[grid](query, key, write, value, inner, decay, output, delta, states, bounds, HEADS=heads, BLOCK=_VALUE_BLOCK,
                            KEEP=keep, num_warps=4)
        if keep:
            ctx.save_for_backward(query, key, write, inner, decay, delta, states, bounds)
            ctx.decay_gradient_function = decay_gradient_function
        return output

    @staticmethod
    def backward(ctx, output_grad):
        query, key, write, inner, decay, delta, states, bounds = ctx.saved_tensors
        output_grad = output_grad.contiguous()
        heads, dim = query.shape[1], query.shape[3]
        delta_grad, state_grads = torch.zeros_like(query), torch.empty_like(states)
        grid = (bounds.numel() - 1, heads, dim // _VALUE_BLOCK)
        _walk_backward[grid](query, key, write, inner, decay, output_grad, delta_grad, state_grads, bounds, HEADS=heads,
                             BLOCK=_VALUE_BLOCK, num_warps=4)
        both = torch.cat([output_grad, delta_grad], 2) @ states.transpose(-1, -2)
        query_grad, write_grad = both.split(query.shape[2], 2)
        key_grad = delta @ state_grads.transpose(-1, -2)
        inner_grad = output_grad @ delta.transpose(-1, -2)
        decay_grad = ctx.decay_gradient_function(states, state_grads)
        return query_grad, key_grad, -write_grad, delta_grad, inner_grad, decay_grad, None, None, None


def walk_in_torch(query, key, write, value, inner, decay, bounds):
    outputs = []
    for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist()):
        state = torch.zeros(query.shape[1], query.shape[3], value.shape[3], dtype=torch.float32, device=query.device)
        for c in range(first, end):
            delta = value[c].float() - write[c].float() @ state
            outputs.append(query[c].float() @ state + inner[c].float() @ delta)
            state = state * decay[c].unsqueeze(-1) + key[c].float().transpose(-1, -2) @ delta
    return torch.stack(outputs).to(query.dtype)


def walk(query, key, write, value, inner, decay, bounds, decay_gradient_function=decay_gradient):
    """-> output [M, H, 16, D]. On a GPU all inputs but decay are bfloat16, and all are contiguous."""
    if query.is_cuda:
        if triton is None:
            raise RuntimeError("kda_scan: training on a GPU needs the triton package")
        return _Walk.apply(query, key, write, value, inner, decay, bounds, torch.is_grad_enabled(), decay_gradient_function)
    return walk_in_torch(query, key, write, value, inner, decay, bounds)


# ---------------------------------------------------------------------------------------------- the inverse inside a chunk
@functools.lru_cache(maxsize=None)
def _off_diagonal_blocks(size, device):
    """[16, 16]: 1 in the lower-left block of every pair of neighbouring diagonal blocks of `size`"""
    block = torch.arange(16, device=device) // size
    return ((block[:, None] % 2 == 1) & (block[None] == block[:, None] - 1)).float()


class UnitLowerInverse(torch.autograd.Function):
    """(I + A)^-1 for strictly lower triangular A [..., 16, 16].

    The inverse of [[X, 0], [B, Y]] is [[X^-1, 0], [-Y^-1 B X^-1, Y^-1]]: diagonal blocks of 1 are inverted already, then of 2, 4, 8, 16.
    """

    @staticmethod
    def forward(ctx, lower):
        inverse = torch.eye(16, device=lower.device).expand(lower.shape) - lower * _off_diagonal_blocks(1, lower.device)
        for size in (2, 4, 8):
            inverse = inverse - inverse @ (lower * _off_diagonal_blocks(size, lower.device)) @ inverse
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx, gradient):
        (inverse,) = ctx.saved_tensors
        transposed = inverse.transpose(-1, -2)
        return -torch.tril(transposed @ gradient @ transposed, -1)
