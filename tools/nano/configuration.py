"""Shape of k3-nano, and where and in which precision training computes."""
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class NanoConfig:
    """Layer numbers count from 0. `mla_layers` use MLA, all others KDA."""

    hidden: int = 128
    layers: int = 13
    mla_layers: tuple = (3, 7, 11, 12)
    residual_block: int = 4  # the stream is banked before layers 0, 4, 8, 12
    vocabulary: int = 2048
    context: int = 4096
    heads: int = 8
    # KDA
    kda_dim: int = 128
    convolution: int = 4
    gate_bound: float = -5.0  # lower bound of a channel's log decay per token
    # MLA: a head's query is [nope | rope]; nothing is rotated
    query_rank: int = 128
    latent_rank: int = 512
    nope_dim: int = 128
    rope_dim: int = 64
    value_dim: int = 128
    # MLPs
    dense_width: int = 512
    experts: int = 32
    experts_per_token: int = 4
    expert_latent: int = 128
    expert_width: int = 64
    shared_experts: int = 2
    routed_scaling: float = 1.5
    situ_beta: float = 4.0
    situ_linear_beta: float = 25.0
    # norms
    norm_eps: float = 1e-5
    latent_norm_eps: float = 1e-6

    @property
    def kda_layers(self):
        return tuple(i for i in range(self.layers) if i not in self.mla_layers)

    @property
    def query_dim(self):
        return self.nope_dim + self.rope_dim


NANO = NanoConfig()

# KDA is trained in chunks of this many tokens; every document of a batch starts at a multiple of it.
CHUNK = 16

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Matrix products: bfloat16 on a GPU, float32 on a CPU, where only self-tests and smoke runs happen.
COMPUTE_TYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32

REPOSITORY = Path(__file__).resolve().parents[2]
DEFAULT_TOKENIZER = REPOSITORY / "models" / "k3-nano" / "tiktoken.model"
