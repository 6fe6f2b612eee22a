"""The LLaMA decoder of VILA-U, fed with embeddings, with replay of MLP outputs.

Blocks, gates, caches and engine are those of the project's own model. What differs: angles of the rotary embedding in
float32, linear position scaling, prompts of different lengths (padding on the left), and hidden states as the result.

Source: LLaMA as published; FastCar (arXiv:2505.14709), eq. 5 and 8, and the behaviour of its released code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import RunShape, check_positions
from model.engine import MlpEngine
from model.frames import FrameLayout
from model.gates import Decision, DenseGate, Gate, Rows, Step, temporal_scores
from model.kv_cache import KvCache
from model.replay import FloatMlp, StepResult
from model.statistics import ReplayStatistics
from model.transformer import Block, RMSNorm, apply_rope


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """Sizes of :class:`Llama`.

    Parameters
    ----------
    rope_factor : :class:`float`
        Linear position scaling: positions are divided by it.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    vocab: int
    rope_theta: float = 10000.0
    rope_factor: float = 1.0
    rms_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("hidden", "intermediate", "layers", "heads", "vocab"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.hidden % (2 * self.heads):
            raise ValueError(f"heads must divide hidden = {self.hidden} into even widths, not {self.heads!r}")
        if not self.rope_factor > 0:
            raise ValueError(f"rope_factor must be positive, not {self.rope_factor!r}")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    @classmethod
    def from_published(cls, fields: dict[str, Any]) -> LlamaConfig:
        """From the fields of a published ``config.json``; an absent ``vocab_size`` is 1.

        Raises
        ------
        ValueError
            A field is missing, or asks for something this decoder does not do.
        """
        try:
            heads = fields["num_attention_heads"]
            sizes = cls(hidden=fields["hidden_size"], intermediate=fields["intermediate_size"],
                        layers=fields["num_hidden_layers"], heads=heads, vocab=fields.get("vocab_size", 1),
                        rope_theta=fields.get("rope_theta", 10000.0), rms_eps=fields["rms_norm_eps"],
                        rope_factor=_linear_factor(fields.get("rope_scaling")))
        except KeyError as error:
            raise ValueError(f"the LLaMA configuration lacks {error}") from error
        for name, allowed in (("num_key_value_heads", heads), ("head_dim", sizes.head_dim), ("hidden_act", "silu"),
                              ("attention_bias", False), ("mlp_bias", False)):
            if fields.get(name) not in (None, allowed):
                raise ValueError(f"{name} must be {allowed!r} in a LLaMA of VILA-U, not {fields[name]!r}")
        return sizes


def _linear_factor(scaling: dict[str, Any] | None) -> float:
    """Factor of a ``rope_scaling`` field, 1 without one."""
    if scaling is None:
        return 1.0
    kind = scaling.get("type", scaling.get("rope_type"))
    if kind != "linear" or "factor" not in scaling:
        raise ValueError(f"rope_scaling must be absent or linear with a factor, not {scaling!r}")
    return float(scaling["factor"])


class Llama(nn.Module):
    """Embeddings of text, decoder layers, final norm, and the text head, which video generation does not use."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.rms_eps)
        self.head = nn.Linear(config.hidden, config.vocab, bias=False)

    def rotary(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines ``[*positions.shape, head_dim / 2]`` of int64 ``positions``.

        Angles are float32, as in training: far into a video their rounding is no longer negligible, and trained
        weights have seen it.
        """
        even = torch.arange(0, self.config.head_dim, 2, dtype=torch.float32, device=positions.device)
        rates = 1.0 / self.config.rope_theta ** (even / self.config.head_dim)
        angles = (positions.float() / self.config.rope_factor)[..., None] * rates
        return angles.cos().to(dtype), angles.sin().to(dtype)


_NAMES = {"embed": "embed_tokens", "blocks": "layers", "input_norm": "input_layernorm", "attention": "self_attn",
          "post_norm": "post_attention_layernorm"}


def published_name(name: str) -> str:
    """Name in a published LLaMA checkpoint of parameter ``name`` of :class:`Llama`."""
    if name.startswith("head."):
        return f"lm_{name}"
    return "model." + ".".join(_NAMES.get(word, word) for word in name.split("."))


@dataclass(frozen=True, kw_only=True)
class LlamaLayerStep:
    """What one layer did in one step, for observers. Tensors are only lent.

    ``layer_in`` ``[rows, hidden]``; ``raw_query``, ``query`` (after RoPE) and ``aligned_key`` ``[rows, heads,
    head_dim]``, the key None where the step is not eligible; ``decision`` and ``result`` of the MLP.
    """

    layer: int
    step: Step
    layer_in: Tensor
    raw_query: Tensor
    query: Tensor
    aligned_key: Tensor | None
    decision: Decision
    result: StepResult


class LlamaRun:
    """Running state of one generation: embeddings in, hidden states after the final norm out.

    Parameters
    ----------
    layout : :class:`~model.frames.FrameLayout`
        ``prelude`` is the common length of the padded prompts, and nothing of them is replayed.
    window : :class:`int`
        Visual steps a query attends to besides the whole prompt, its own included; the number of steps for all.
    positions : one of :data:`~model.config.POSITIONS`
    gate, engine :
        By default nothing replays, and MLPs run in the model's precision.
    observer : called for every layer of every step
    """

    def __init__(self, llama: Llama, rows: Rows, layout: FrameLayout, *, window: int, positions: str = "sequence",
                 gate: Gate | None = None, engine: MlpEngine | None = None,
                 observer: Callable[[LlamaLayerStep], None] | None = None):
        check_positions(positions)
        weight = llama.norm.weight
        config = llama.config
        shape = RunShape(layers=config.layers, hidden=config.hidden, heads=config.heads, head_dim=config.head_dim,
                         layout=layout, window=window)
        self.cache = KvCache(shape, rows.count, dtype=weight.dtype, device=weight.device,
                             movable_prelude=positions == "cache")
        self._llama, self._layout, self._window, self._observer = llama, layout, window, observer
        self._in_cache = positions == "cache"
        self._blocks = [cast(Block, block) for block in llama.blocks]
        self._gate = gate or DenseGate()
        self._engine = engine or FloatMlp(llama, dtype=weight.dtype, device=weight.device)
        self.statistics = ReplayStatistics(config.layers, rows, getattr(self._gate, "variant", None))
        self._variant = self.statistics.tas_variant or "paper"
        self._padding: Tensor | None = None
        self._gate.begin(shape, rows)
        self._engine.begin(rows.count, layout)

    def prefill(self, embeds: Tensor, real: Tensor) -> Tensor:
        """Hidden states ``[rows, prelude, hidden]`` of the prompts; those of padding mean nothing.

        Parameters
        ----------
        embeds : ``[rows, prelude, hidden]``
        real : bool ``[rows, prelude]``
            False on the padding, which stands on the left; positions count from a row's first real token.
        """
        positions = (real.long().cumsum(dim=1) - 1).masked_fill(~real, 1)
        tables = self._tables(positions, embeds.dtype)
        own = torch.eye(real.shape[1], dtype=torch.bool, device=real.device)
        # A padded query that sees nothing would be NaN, and NaN values poison even keys that are masked.
        mask = torch.ones_like(own).tril() & real[:, None, None, :] | own
        x = embeds
        for layer, block in enumerate(self._blocks):
            q, k, v = block.attention.project(block.input_norm(x), tables)
            self.cache.store_prelude(layer, k, v)
            x = x + block.attention.combine(functional.scaled_dot_product_attention(q, k, v, attn_mask=mask))
            x = x + self._engine.prefill(layer, block.post_norm(x).flatten(0, 1)).view_as(x)
        self._lengths = real.sum(dim=1)
        self._padding = None if bool(real.all()) else real
        return self._llama.norm(x)

    def step(self, number: int, embeds: Tensor) -> Tensor:
        """Hidden states ``[rows, hidden]`` after feeding visual step ``number``, ``embeds`` ``[rows, hidden]``."""
        step = Step.at(number, self._layout)
        tables = self._tables((self._lengths + number)[:, None], embeds.dtype)
        visible = self._visible(number)
        evicted = max(0, number + 1 - self._window)
        moved = None
        if self._in_cache and evicted:
            moved = self._llama.rotary(torch.tensor(evicted, device=embeds.device), embeds.dtype)
        x = embeds
        for layer, block in enumerate(self._blocks):
            layer_in = x
            if moved is not None:
                self.cache.move_prelude(layer, moved)
            raw, k, v = block.attention.project_raw(block.input_norm(x)[:, None])
            q, k = apply_rope(raw, tables), apply_rope(k, tables)
            self.cache.store(layer, number, k, v)
            keys, values = self.cache.visible(layer, number)
            attended = functional.scaled_dot_product_attention(q, keys, values, attn_mask=visible)
            x = x + block.attention.combine(attended).squeeze(1)
            raw, q = raw.squeeze(2), q.squeeze(2)
            wanted = step.eligible and (self._gate.needs_scores or self._observer is not None)
            aligned = self.cache.aligned_key(layer, number) if wanted else None
            scores = None if aligned is None else temporal_scores(self._variant, raw, q, aligned)
            mlp_input = block.post_norm(x)
            decision = self._gate.decide(layer, step, mlp_input, scores)
            result = self._engine.step(layer, step.index, mlp_input, decision)
            if self._observer is not None:
                self._observer(LlamaLayerStep(layer=layer, step=step, layer_in=layer_in, raw_query=raw, query=q,
                                              aligned_key=aligned, decision=decision, result=result))
            self._gate.update(layer, step, mlp_input, result.computed)
            self.statistics.add(layer, step, result.computed)
            x = x + result.y
        return self._llama.norm(x)

    def _tables(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Rotary tables that broadcast over heads, of int64 ``positions`` ``[rows, n]``."""
        cos, sin = self._llama.rotary(positions, dtype)
        return cos[:, None], sin[:, None]

    def _visible(self, number: int) -> Tensor | None:
        """Attention mask bool ``[rows, 1, 1, keys]`` that hides padding; None when there is none."""
        if self._padding is None:
            return None
        steps = min(number + 1, self._window)
        return functional.pad(self._padding, (0, steps), value=True)[:, None, None, :]
