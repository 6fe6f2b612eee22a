"""One object for callers: a VILA-U folder opened, and videos as codes, pixels and statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.gates import Gate
from model.generate import Progress
from model.vilau.generate import VilaGeneration, generate
from model.vilau.loader import load
from model.vilau.model import VilaU
from model.vilau.plan import MemoryPlan, plan
from model.vilau.prompt import Tokenizer
from model.vilau.sampling import CodeSampling


@dataclass(frozen=True, kw_only=True)
class Videos:
    """``pixels`` float32 ``[videos, frames, 3, h, w]`` in 0..255, and the ``generation`` they come from."""

    pixels: Tensor
    generation: VilaGeneration

    def summary(self) -> dict[str, Any]:
        """Replay statistics as JSON-ready values."""
        return self.generation.statistics.summary() | {"complete": self.generation.complete}


class Pipeline:
    """A VILA-U model with its tokenizer.

    Parameters
    ----------
    folder : the released folder, see :func:`model.vilau.loader.load` for what is raised
    device, dtype : where and how the weights are held; nothing needs CUDA
    """

    def __init__(self, folder: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32):
        self.model: VilaU = load(folder, device=device, dtype=dtype)
        self.tokenizer = Tokenizer(Path(folder) / "llm", self.model.config.llm.vocab)
        self._device, self._dtype = str(device), dtype

    def plan(self, prompts: Sequence[str], *, frames: int | None = None, cfg_scale: float = CodeSampling.cfg_scale,
             window: int | None = None, reference_inputs: bool = False) -> MemoryPlan:
        """Memory that :meth:`generate` with these arguments takes."""
        ids, _ = self.tokenizer.batch([*prompts, None] if cfg_scale != 1 else prompts)
        return plan(self.model.config, rows=len(prompts) * (1 if cfg_scale == 1 else 2), prompt_tokens=ids.shape[1],
                    frames=frames, dtype=self._dtype, device=self._device, window=window,
                    reference_inputs=reference_inputs)

    def generate(self, prompts: Sequence[str], seeds: Sequence[int], *, frames: int | None = None,
                 sampling: CodeSampling | None = None, gate: Gate | None = None, window: int | None = None,
                 positions: str = "sequence",
                 on_step: Callable[[Progress], None] | None = None,
                 on_frame: Callable[[int, Tensor], None] | None = None) -> Videos:
        """One video per prompt; arguments, interruption and errors as :func:`model.vilau.generate.generate`.

        ``on_frame`` gets the number of each finished frame and its pixels ``[videos, 3, h, w]``.
        """
        shown: list[Tensor] = []

        def decode(number: int, codes: Tensor) -> None:
            shown.append(self.model.frames(codes))
            if on_frame is not None:
                on_frame(number, shown[-1])

        done = generate(self.model, self.tokenizer, prompts, seeds, frames=frames, sampling=sampling, gate=gate,
                        window=window, positions=positions, on_step=on_step, on_frame=decode)
        kept = shown[:done.codes.shape[1]]
        pixels = torch.stack(kept, dim=1) if kept else self.model.frames(done.codes)
        return Videos(pixels=pixels, generation=done)
