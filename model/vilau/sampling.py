"""Residual codes from guided logits: temperature, top-k, top-p, and where the random numbers come from.

Source: VILA-U (arXiv:2409.04429) and its defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from model.config import Sampling
from model.sampling import Uniforms, inverse_cdf


@dataclass(frozen=True, kw_only=True)
class CodeSampling(Sampling):
    """How codes are drawn from guided logits ``u + cfg_scale * (c - u)``.

    Of the ``top_k`` most probable codes those stay whose more probable ones have less than ``top_p`` together.
    Temperature 0 takes the largest logit. ``cfg_scale`` 1 needs no unconditional rows.
    """

    cfg_scale: float = 3.0
    temperature: float = 1.0
    top_k: int = 900
    top_p: float = 0.96

    def __post_init__(self) -> None:
        Sampling.__post_init__(self)
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p!r}")


def probabilities(logits: Tensor, sampling: CodeSampling) -> Tensor:
    """Probabilities float32 ``[rows, codes]`` after all filters, of ``logits`` ``[rows, codes]``."""
    scaled = logits.float() / sampling.temperature
    least = scaled.topk(min(sampling.top_k, scaled.shape[1]), dim=1).values[:, -1:]
    chances = torch.softmax(scaled.masked_fill(scaled < least, -torch.inf), dim=1)
    ordered, order = chances.sort(dim=1, descending=True)
    # The sum before a code, not with it: the most probable code always stays.
    dropped = torch.zeros_like(chances, dtype=torch.bool)
    dropped[:, 1:] = ordered.cumsum(dim=1)[:, :-1] >= sampling.top_p
    chances = chances.masked_fill(dropped.scatter(1, order, dropped), 0)
    return chances / chances.sum(dim=1, keepdim=True)


class Draws(Protocol):
    """Random choices of one generation, in order: ``depth`` codes per visual token."""

    def codes(self, chances: Tensor) -> Tensor:
        """Codes int64 ``[videos]``, drawn from ``chances`` float32 ``[videos, codes]``."""

    def end_token(self) -> None:
        """All depths of a visual token are drawn."""


class RowDraws:
    """Every video draws from a generator of its own: what it shows does not depend on its neighbours."""

    def __init__(self, seeds: Sequence[int], depth: int):
        self._uniforms = Uniforms(seeds, depth)
        self._drawn, self._depth = self._uniforms.frame(), 0

    def codes(self, chances: Tensor) -> Tensor:
        uniforms = self._drawn[:, self._depth]
        self._depth += 1
        return inverse_cdf(chances.double().cpu(), uniforms)

    def end_token(self) -> None:
        self._drawn, self._depth = self._uniforms.frame(), 0


class SharedDraws:
    """The order of the released code: one stream for all rows, and one more draw a token for text that it discards.

    Parameters
    ----------
    rows, vocab : :class:`int`
        Shape of the probabilities of that text; how many numbers it takes depends on nothing else.
    """

    def __init__(self, seed: int, rows: int, vocab: int):
        self._generator = torch.Generator().manual_seed(seed)
        self._discarded = torch.ones(rows, vocab)

    def codes(self, chances: Tensor) -> Tensor:
        return torch.multinomial(chances.cpu(), 1, generator=self._generator).squeeze(1)

    def end_token(self) -> None:
        torch.multinomial(self._discarded, 1, generator=self._generator)
