"""Teacher forcing: a gate runs on given codes, so that numeric drift is seen without another choice of codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from model import vocabulary
from model.engine import MlpEngine
from model.gates import Gate, Rows
from model.generate import Decoder, LayerStep
from model.sampling import guide
from model.transformer import Transformer


@torch.inference_mode()
def force(transformer: Transformer, prompts: Sequence[str], seeds: Sequence[int], codes: Tensor, *, gate: Gate,
          engine: MlpEngine, window: int | None, observer: Callable[[LayerStep], None],
          on_logits: Callable[[int, int, Tensor], None]) -> None:
    """Feed ``codes`` int64 ``[videos, frames, tokens_per_frame]`` to all prompts together.

    ``seeds`` are those of the videos, which a random gate draws from. ``on_logits`` is called with frame, index and
    the guided logits ``[videos, codebook]`` of that code.
    """
    config, layout = transformer.config, transformer.config.layout
    rows = Rows(seeds=tuple(seeds), guided=config.sampling.cfg_scale != 1)
    texts = [*prompts, *([None] * (rows.count - rows.videos))]
    text_ids = torch.tensor([vocabulary.encode(text, layout.prelude) for text in texts])
    last = (codes.shape[1] - 1) * layout.stride + layout.tokens_per_frame - 1
    decoder = Decoder(transformer, rows, gate, engine, window=None if window is None else min(window, last + 1),
                      observer=observer)
    logits = decoder.prefill(text_ids)
    for number in range(last + 1):
        frame, index = layout.frame(number), layout.index(number)
        if layout.is_separator(number):
            fed = torch.full((rows.count,), config.separator_code)
        else:
            on_logits(frame, index, guide(logits, rows.videos, config.sampling.cfg_scale))
            fed = codes[:, frame, index].repeat(rows.count // rows.videos)
        if number < last:
            logits = decoder.step(number, fed)


class DenseLogits:
    """Guided logits of the dense model, float32 ``[frames, tokens_per_frame, videos, codebook]`` in a file."""

    def __init__(self, path: Path, transformer: Transformer, videos: int, frames: int, *, create: bool = False):
        config = transformer.config
        shape = (frames, config.layout.tokens_per_frame, videos, config.codebook)
        self._values = np.memmap(path, dtype=np.float32, mode="w+" if create else "r", shape=shape)

    def keep(self, frame: int, index: int, logits: Tensor) -> None:
        """Take logits ``[videos, codebook]``, as :func:`force` gives them."""
        self._values[frame, index] = logits.numpy()

    def at(self, frame: int, index: int) -> Tensor:
        """Logits ``[videos, codebook]``."""
        return torch.from_numpy(self._values[frame, index].copy())


class LogitDrift:
    """Compares guided logits with the dense ones, over all codes: the cut of top-k would make it infinite.

    Parameters
    ----------
    temperature : :class:`float`
        Of the softmax.

    Attributes
    ----------
    divergence : float64 ``[videos, frames]``
        Kullback-Leibler divergence of the dense distribution from this one in nats, mean over the codes of a frame.
    same_best : float64 ``[videos, frames]``
        Share of codes whose most likely value is the dense one.
    """

    def __init__(self, reference: DenseLogits, videos: int, frames: int, tokens: int, temperature: float):
        self._reference, self._tokens, self._temperature = reference, tokens, temperature
        self.divergence, self.same_best = np.zeros((videos, frames)), np.zeros((videos, frames))

    def __call__(self, frame: int, index: int, logits: Tensor) -> None:
        dense = self._reference.at(frame, index)
        expected, found = (torch.log_softmax(values.double() / self._temperature, dim=1) for values in (dense, logits))
        divergence = (expected.exp() * (expected - found)).sum(dim=1)
        self.divergence[:, frame] += divergence.numpy() / self._tokens
        self.same_best[:, frame] += (dense.argmax(dim=1) == logits.argmax(dim=1)).numpy() / self._tokens
