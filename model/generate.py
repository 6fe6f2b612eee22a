"""Autoregressive generation of a batch of videos, with replay.

Rows of the batch are the conditional prompts, then, under guidance, their unconditional twins. What a video shows
depends on the model, its prompt, its seed and the settings, not on the batch it is in (but for the rounding of matrix
products, whose kernels may depend on the number of rows).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from model import vocabulary
from model.config import RunShape, Sampling, check_positions
from model.engine import MlpEngine
from model.gates import Decision, DenseGate, Gate, Rows, Step, temporal_scores
from model.kv_cache import KvCache
from model.replay import FloatMlp, StepResult
from model.sampling import Uniforms, guide, sample
from model.statistics import ReplayStatistics
from model.transformer import Block, Transformer, apply_rope, rope_tables, window_mask


@dataclass(frozen=True, kw_only=True)
class LayerStep:
    """What one layer did in one step, for observers: MLP inputs ``x`` ``[rows, hidden]``, ``scores`` ``[rows, heads]``
    of eligible steps, the gate's decision and the engine's result. Tensors are only lent: copy what is kept."""

    layer: int
    step: Step
    x: Tensor
    scores: Tensor | None
    decision: Decision
    result: StepResult


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a generation is: visual steps done and in all, and the statistics so far."""

    done: int
    steps: int
    frame: int
    statistics: ReplayStatistics


@dataclass(frozen=True, kw_only=True)
class Generation:
    """``codes`` int64 ``[videos, frames, tokens_per_frame]``; not ``complete`` if it was interrupted, then ``codes``
    has the frames that were done."""

    codes: Tensor
    statistics: ReplayStatistics
    complete: bool


class Decoder:
    """Running state of one generation: hidden states in, logits out, step after step.

    Parameters
    ----------
    window : :class:`int`
        Visual steps a query attends to, its own included; by default the model's.
    positions : one of :data:`~model.config.POSITIONS`
    observer : called for every layer of every visual step
    """

    def __init__(self, transformer: Transformer, rows: Rows, gate: Gate, engine: MlpEngine, *,
                 window: int | None = None, positions: str = "sequence",
                 observer: Callable[[LayerStep], None] | None = None):
        check_positions(positions)
        config = self.config = transformer.config
        shape = RunShape(layers=config.layers, hidden=config.hidden, heads=config.heads, head_dim=config.head_dim,
                         layout=config.layout, window=config.window if window is None else window)
        self.statistics = ReplayStatistics(config.layers, rows, getattr(gate, "variant", None))
        self.cache = KvCache(shape, rows.count, movable_prelude=positions == "cache")
        self._window, self._in_cache = shape.window, positions == "cache"
        self._blocks = [cast(Block, block) for block in transformer.blocks]
        self._transformer, self._gate, self._engine, self._observer = transformer, gate, engine, observer
        self._needs_residual = getattr(gate, "needs_residual", False)
        gate.begin(shape, rows)
        engine.begin(rows.count, config.layout)

    def prefill(self, text_ids: Tensor) -> Tensor:
        """Logits ``[rows, codebook]`` of the first code after the prelude ``text_ids`` int64 ``[rows, prelude]``."""
        prelude = self.config.layout.prelude
        tables = rope_tables(torch.arange(prelude), self.config)
        mask = window_mask(prelude, 0, self._window)
        x = self._transformer.embed_text(text_ids)
        for layer, block in enumerate(self._blocks):
            q, k, v = block.attention.project(block.input_norm(x), tables)
            self.cache.store_prelude(layer, k, v)
            x = x + block.attention.combine(functional.scaled_dot_product_attention(q, k, v, attn_mask=mask))
            x = x + self._engine.prefill(layer, block.post_norm(x).flatten(0, 1)).view_as(x)
        return self._transformer.logits(x[:, -1])

    def step(self, number: int, codes: Tensor) -> Tensor:
        """Logits ``[rows, codebook]`` of visual step ``number + 1``, after ``codes`` int64 ``[rows]`` at ``number``."""
        layout = self.config.layout
        step = Step.at(number, layout)
        tables = rope_tables(torch.tensor([layout.position(number)]), self.config)
        evicted = max(0, number + 1 - self._window)
        moved = rope_tables(torch.tensor(evicted), self.config) if self._in_cache and evicted else None
        x = self._transformer.embed_visual(codes, torch.tensor(step.index))
        for layer, block in enumerate(self._blocks):
            if moved is not None:
                self.cache.move_prelude(layer, moved)
            attended, scores = self._attend(layer, block, step, tables, x)
            x = x + attended
            mlp_input = block.post_norm(x)
            more = {"residual": x} if self._needs_residual else {}
            decision = self._gate.decide(layer, step, mlp_input, scores, **more)
            result = self._engine.step(layer, step.index, mlp_input, decision)
            if self._observer is not None:
                self._observer(LayerStep(layer=layer, step=step, x=mlp_input, scores=scores, decision=decision,
                                         result=result))
            self._gate.update(layer, step, mlp_input, result.computed)
            self.statistics.add(layer, step, result.computed)
            x = x + result.y
        return self._transformer.logits(x)

    def _attend(self, layer: int, block: Block, step: Step, tables: tuple[Tensor, Tensor],
                x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Attention output ``[rows, hidden]`` and, where they are wanted, temporal scores ``[rows, heads]``."""
        raw, k, v = block.attention.project_raw(block.input_norm(x)[:, None])
        q, k = apply_rope(raw, tables), apply_rope(k, tables)
        self.cache.store(layer, step.number, k, v)
        keys, values = self.cache.visible(layer, step.number)
        attended = block.attention.combine(functional.scaled_dot_product_attention(q, keys, values)).squeeze(1)
        if not step.eligible or not (self._gate.needs_scores or self._observer is not None):
            return attended, None
        variant = getattr(self._gate, "variant", "paper")
        aligned = self.cache.aligned_key(layer, step.number)
        return attended, temporal_scores(variant, raw.squeeze(2), q.squeeze(2), aligned)


@torch.inference_mode()
def generate(transformer: Transformer, prompts: Sequence[str], seeds: Sequence[int], *, frames: int | None = None,
             sampling: Sampling | None = None, gate: Gate | None = None, engine: MlpEngine | None = None,
             window: int | None = None, positions: str = "sequence",
             on_step: Callable[[Progress], None] | None = None,
             on_frame: Callable[[int, Tensor], None] | None = None,
             observer: Callable[[LayerStep], None] | None = None) -> Generation:
    """Generate one video per prompt, all together.

    An interrupt (Ctrl-C) ends the generation early; what is done is returned.

    Parameters
    ----------
    seeds : sequence of :class:`int`
        One per prompt; a video's random numbers come from its own generator.
    frames : :class:`int`
        Length, by default that of the model's layout; any number, memory does not grow with it.
    sampling : :class:`~model.config.Sampling`
        By default the model's; a ``cfg_scale`` of 1 leaves the unconditional rows out.
    gate, engine :
        By default nothing replays, and MLPs run in float32.
    window : :class:`int`
        Visual steps attended to besides the whole prelude, the query's own included; by default the model's. At least
        as many as the video has steps is full attention.
    positions : one of :data:`~model.config.POSITIONS`
        Where the prelude stands once steps were evicted.
    on_step : called after every visual step
    on_frame : called with the number of each complete frame and its codes int64 ``[videos, tokens_per_frame]``
    observer : called for every layer of every visual step

    Raises
    ------
    ValueError
        No prompt, another number of seeds, a negative seed, fewer than one frame, a window below one step, unknown
        positions.
    PromptError
        A prompt with a word outside the vocabulary, or too long.
    """
    config, layout = transformer.config, transformer.config.layout
    frames = layout.frames if frames is None else frames
    sampling = config.sampling if sampling is None else sampling
    if not prompts or len(prompts) != len(seeds):
        raise ValueError(f"{len(prompts)} prompts with {len(seeds)} seeds; give a prompt or more, and a seed for each")
    if any(not 0 <= seed < 1 << 63 for seed in seeds):
        raise ValueError(f"seeds must be in 0..2**63 - 1, not {list(seeds)!r}")
    if frames < 1:
        raise ValueError(f"frames must be at least 1, not {frames!r}")
    rows = Rows(seeds=tuple(seeds), guided=sampling.cfg_scale != 1)
    texts = [*prompts, *([None] * (rows.count - rows.videos))]
    text_ids = torch.tensor([vocabulary.encode(text, layout.prelude) for text in texts])
    last = (frames - 1) * layout.stride + layout.tokens_per_frame - 1
    # No more than the video has: the cache would hold room for steps that never come.
    window = None if window is None else min(window, last + 1)
    decoder = Decoder(transformer, rows, gate or DenseGate(), engine or FloatMlp(transformer), window=window,
                      positions=positions, observer=observer)
    done: list[Tensor] = []
    try:
        logits = decoder.prefill(text_ids)
        uniforms = Uniforms(seeds, layout.tokens_per_frame)
        for number in range(last + 1):
            index = layout.index(number)
            if index == 0:
                draws, codes = uniforms.frame(), torch.empty(rows.videos, layout.tokens_per_frame, dtype=torch.int64)
            if layout.is_separator(number):
                fed = torch.full((rows.count,), config.separator_code)
            else:
                codes[:, index] = sample(guide(logits, rows.videos, sampling.cfg_scale), sampling, draws[:, index])
                fed = codes[:, index].repeat(rows.count // rows.videos)
            if index == layout.tokens_per_frame - 1:
                done.append(codes)
                if on_frame is not None:
                    on_frame(len(done) - 1, codes)
            if number < last:
                logits = decoder.step(number, fed)
            if on_step is not None:
                on_step(Progress(done=number + 1, steps=last + 1, frame=layout.frame(number),
                                 statistics=decoder.statistics))
    except KeyboardInterrupt:
        complete = False
    else:
        complete = True
    shown = torch.stack(done, dim=1) if done else torch.empty(rows.videos, 0, layout.tokens_per_frame).long()
    return Generation(codes=shown, statistics=decoder.statistics, complete=complete)
