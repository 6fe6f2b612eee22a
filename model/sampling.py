"""From logits to codes: classifier-free guidance, temperature, top-k, one uniform number per code."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from model.config import Sampling


class Uniforms:
    """Uniform numbers in [0, 1) of every video, each from its own generator: ``tokens`` of them per frame."""

    def __init__(self, seeds: Sequence[int], tokens: int):
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._tokens = tokens

    def frame(self) -> Tensor:
        """Numbers of the next frame, float64 ``[videos, tokens]``."""
        return torch.stack([torch.rand(self._tokens, generator=generator, dtype=torch.float64)
                            for generator in self._generators])


def guide(logits: Tensor, videos: int, scale: float) -> Tensor:
    """Guided logits ``[videos, codebook]`` of ``[rows, codebook]``, conditional rows first.

    ``u + scale * (c - u)``; with as many rows as videos there is nothing to guide by.
    """
    if len(logits) == videos:
        return logits
    conditional, unconditional = logits[:videos], logits[videos:]
    return unconditional + scale * (conditional - unconditional)


def sample(logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Tensor:
    """Codes int64 ``[videos]`` by the inverse of the cumulative distribution, in code order.

    Code order, not order of probability: then a rounding difference moves a limit by as much and swaps nothing.

    Parameters
    ----------
    logits : ``[videos, codebook]``
    uniforms : float64 ``[videos]`` in [0, 1)
    """
    if sampling.temperature == 0:
        return logits.argmax(dim=1)
    wide = logits.double()
    least = wide.topk(min(sampling.top_k, wide.shape[1]), dim=1).values[:, -1:]
    chances = torch.softmax((wide / sampling.temperature).masked_fill(wide < least, -torch.inf), dim=1)
    return inverse_cdf(chances, uniforms)


def inverse_cdf(chances: Tensor, uniforms: Tensor) -> Tensor:
    """Codes int64 ``[videos]`` with ``chances`` float64 ``[videos, codebook]``, of which rows need not sum to 1.

    ``uniforms`` are float64 ``[videos]`` in [0, 1).
    """
    limits = chances.cumsum(dim=1)
    total = limits[:, -1:]
    # Below the total even where the product rounds up, so that the last code with a chance is the last that is drawn.
    target = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(limits, target, right=True).squeeze(1)
