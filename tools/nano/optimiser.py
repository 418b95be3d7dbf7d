"""Muon for matrices, Adam for the rest."""
import math

import torch

from configuration import COMPUTE_TYPE

_MUON_MOMENTUM = 0.95
_MUON_UPDATE_RMS = 0.2
_ADAM_BETAS = (0.9, 0.98)
_ADAM_EPS = 1e-8


def orthogonalised(update):
    """Five Newton-Schulz steps: pushes the singular values of every matrix in [..., m, n] towards 1. -> float32"""
    tall = update.shape[-2] > update.shape[-1]
    x = update.to(COMPUTE_TYPE)
    if tall:
        x = x.transpose(-1, -2)
    norm = x.float().flatten(-2).norm(dim=-1)[..., None, None]
    x = x / (norm + 1e-7).to(x.dtype)
    for _ in range(5):
        gram = x @ x.transpose(-1, -2)
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.transpose(-1, -2) if tall else x).float()


class MuonAdam:
    """Muon on `muon_names`, Adam on the others that require gradients. Adam's gradients are clipped to a joint norm of 1."""

    def __init__(self, parameters, muon_names):
        self.parameters = parameters
        self.muon = [name for name in parameters if name in muon_names]
        self.adam = [name for name, value in parameters.items() if name not in muon_names and value.requires_grad]
        self.first = {name: torch.zeros_like(parameters[name]) for name in self.muon + self.adam}
        self.second = {name: torch.zeros_like(parameters[name]) for name in self.adam}
        self.steps = 0

    @torch.no_grad()
    def step(self, muon_rate, adam_rate, weight_decay=0.05):
        """Uses up the gradients -> norm of Adam's gradients before clipping"""
        self.steps += 1
        norm = torch.sqrt(sum(self.parameters[name].grad.float().pow(2).sum() for name in self.adam))
        clip = torch.clamp(1.0 / (norm + 1e-6), max=1.0)
        for name in self.muon:
            self._muon_step(name, muon_rate, weight_decay)
        for name in self.adam:
            self._adam_step(name, adam_rate, clip)
        for value in self.parameters.values():
            value.grad = None
        return norm

    def _muon_step(self, name, rate, weight_decay):
        """Nesterov momentum, orthogonalised, scaled to an update RMS of 0.2 rate"""
        value, gradient = self.parameters[name], self.parameters[name].grad
        momentum = self.first[name].mul_(_MUON_MOMENTUM).add_(gradient)
        update = orthogonalised(gradient + _MUON_MOMENTUM * momentum)
        scale = _MUON_UPDATE_RMS * math.sqrt(max(value.shape[-2:]))
        value.mul_(1 - rate * weight_decay).add_(update, alpha=-rate * scale)

    def _adam_step(self, name, rate, clip):
        value = self.parameters[name]
        gradient = value.grad * clip
        beta1, beta2 = _ADAM_BETAS
        first = self.first[name].mul_(beta1).add_(gradient, alpha=1 - beta1)
        second = self.second[name].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        first = first / (1 - beta1**self.steps)
        second = second / (1 - beta2**self.steps)
        value.add_(first / (second.sqrt() + _ADAM_EPS), alpha=-rate)

    def state(self):
        return {"first": self.first, "second": self.second, "steps": self.steps}

    def restore(self, state):
        self.steps = state["steps"]
        for kind in ("first", "second"):
            for name, value in state[kind].items():
                getattr(self, kind)[name].copy_(value)
