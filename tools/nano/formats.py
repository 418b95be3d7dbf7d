"""Number formats of the checkpoint: block-FP8 (E4M3 codes, one float32 scale for each 128x128 block) and MXFP4 (E2M1 codes, one
power-of-two scale for each 32 elements of a row).

`*_round` gives float32 values as the stored tensor would read back; `*_pack` gives the stored tensors; `*_unpack` reads them back.
The tests hold `unpack(pack(w)) == round(w)` exactly.
"""
import torch

FP8_BLOCK = 128
FP8_MAXIMUM = 448.0
MX_BLOCK = 32
E2M1_MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
E8M0_BIAS = 127


# ---------------------------------------------------------------------------------------------- E4M3 and block-FP8
def e4m3(values):
    """Nearest E4M3 code, ties to even, saturating at 448. float32 -> float8_e4m3fn of the same shape."""
    return values.clamp(-FP8_MAXIMUM, FP8_MAXIMUM).to(torch.float8_e4m3fn)


def fp8_scales(weight):
    """[..., N, K] -> [..., ceil(N/128), ceil(K/128)] float32: largest magnitude of each block / 448, 1 for a block of zeros."""
    rows, columns = weight.shape[-2:]
    padded = torch.nn.functional.pad(weight.float(), (0, -columns % FP8_BLOCK, 0, -rows % FP8_BLOCK))
    blocks = padded.unflatten(-1, (-1, FP8_BLOCK)).unflatten(-3, (-1, FP8_BLOCK))
    largest = blocks.abs().amax(dim=(-3, -1))
    return torch.where(largest > 0, largest / FP8_MAXIMUM, torch.ones_like(largest))


def _per_element(scales, rows, columns):
    """[..., row blocks, column blocks] -> [..., rows, columns]"""
    by_row = scales.repeat_interleave(FP8_BLOCK, -2)[..., :rows, :]
    return by_row.repeat_interleave(FP8_BLOCK, -1)[..., :columns]


def fp8_pack(weight):
    """[..., N, K] -> codes float8_e4m3fn [..., N, K], scales float32 [..., ceil(N/128), ceil(K/128)]"""
    scales = fp8_scales(weight)
    return e4m3(weight.float() / _per_element(scales, *weight.shape[-2:])), scales


def fp8_unpack(codes, scales):
    return codes.float() * _per_element(scales, *codes.shape[-2:])


def fp8_round(weight):
    return fp8_unpack(*fp8_pack(weight))


# ---------------------------------------------------------------------------------------------- E2M1 and MXFP4
def _e2m1_magnitude(magnitude):
    """Nearest of E2M1_MAGNITUDES for values >= 0, ties to the even code, saturating at 6."""
    step = torch.full_like(magnitude, 0.5)
    step = torch.where(magnitude >= 2.0, torch.full_like(step, 1.0), step)
    step = torch.where(magnitude >= 4.0, torch.full_like(step, 2.0), step)
    return (torch.round(magnitude / step) * step).clamp(max=6.0)


def _mx_blocks(weight):
    return weight.float().unflatten(-1, (-1, MX_BLOCK))


def mx_exponents(weight):
    """[..., N, K] -> [..., N, K/32, 1]: exponent e of each block's scale 2^e.

    Two candidates: the one that maps the largest magnitude into [4, 8), where it may saturate at 6, and the next larger. The one
    with the smaller squared error is taken, the first on a tie.
    """
    magnitude = _mx_blocks(weight).abs()
    largest = magnitude.amax(-1, keepdim=True)
    _, exponent = torch.frexp(torch.where(largest > 0, largest, torch.ones_like(largest)))
    low = (exponent - 3).to(magnitude.dtype)

    def squared_error(candidate):
        scale = torch.exp2(candidate)
        return ((_e2m1_magnitude(magnitude / scale) * scale - magnitude) ** 2).sum(-1, keepdim=True)

    return torch.where(squared_error(low + 1) < squared_error(low), low + 1, low)


def mx_round(weight):
    blocks, scale = _mx_blocks(weight), torch.exp2(mx_exponents(weight))
    return (torch.sign(blocks) * _e2m1_magnitude(blocks.abs() / scale) * scale).reshape(weight.shape)


def mx_pack(weight):
    """[..., N, K] -> packed uint8 [..., N, K/2], E8M0 scales uint8 [..., N, K/32].

    Element 2j of a row lies in the low nibble of byte j. Bit 3 of a nibble is the sign; zero is always stored as +0.
    """
    blocks, exponents = _mx_blocks(weight), mx_exponents(weight)
    magnitude = _e2m1_magnitude(blocks.abs() / torch.exp2(exponents))
    code = torch.searchsorted(E2M1_MAGNITUDES.to(weight.device), magnitude.contiguous())
    code = torch.where((blocks < 0) & (code > 0), code + 8, code).reshape(weight.shape)
    packed = (code[..., 0::2] | (code[..., 1::2] << 4)).to(torch.uint8)
    return packed, (exponents.squeeze(-1).long() + E8M0_BIAS).to(torch.uint8)


def mx_unpack(packed, scales):
    table = torch.cat([E2M1_MAGNITUDES, -E2M1_MAGNITUDES])
    codes = packed.long()
    values = table[torch.stack([codes & 15, codes >> 4], -1)].flatten(-2)
    return values * torch.exp2(scales.float() - E8M0_BIAS).repeat_interleave(MX_BLOCK, -1)
