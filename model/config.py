"""Sizes of the transformer and how its output is sampled, with named presets."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Protocol

from model.frames import FrameLayout
from model.mx import BLOCK
from model.vocabulary import WORDS


class LayerSizes(Protocol):
    """Sizes of one decoder layer: read-only ``hidden``, ``intermediate``, ``heads``, ``rms_eps``."""

    @property
    def hidden(self) -> int: ...

    @property
    def intermediate(self) -> int: ...

    @property
    def heads(self) -> int: ...

    @property
    def rms_eps(self) -> float: ...


class StackSizes(Protocol):
    """Sizes of a stack of layers."""

    @property
    def layers(self) -> int: ...

    @property
    def hidden(self) -> int: ...


class RunSizes(StackSizes, Protocol):
    """Sizes that a generation's cache and gate depend on. ``window``: visual steps attended to, its own included."""

    @property
    def heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def layout(self) -> FrameLayout: ...

    @property
    def window(self) -> int: ...


POSITIONS = ("sequence", "cache")
"""Where the prelude stands once a window has evicted steps: where it always stood (our models are trained so), or right
before the window, as in StreamingLLM (arXiv:2309.17453), where positions are those in the cache."""


@dataclass(frozen=True, kw_only=True)
class RunShape:
    """Sizes of one generation: those of a model, with a layout and a window of the caller's choice."""

    layers: int
    hidden: int
    heads: int
    head_dim: int
    layout: FrameLayout
    window: int

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window must be at least 1 visual step, not {self.window!r}")


def check_positions(positions: str) -> None:
    """Raise ValueError unless ``positions`` is one of :data:`POSITIONS`."""
    if positions not in POSITIONS:
        raise ValueError(f"positions must be one of {', '.join(POSITIONS)}, not {positions!r}")


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a code is drawn from the logits of a conditional (c) and an unconditional (u) row.

    Guided logits are ``u + cfg_scale * (c - u)``; with ``cfg_scale`` 1 the unconditional row is not needed.
    Probabilities are the softmax of the ``top_k`` largest guided logits divided by ``temperature``;
    temperature 0 takes the largest.
    """

    cfg_scale: float = 1.5
    temperature: float = 1.0
    top_k: int = 32

    def __post_init__(self) -> None:
        if not self.cfg_scale >= 0:
            raise ValueError(f"cfg_scale must be at least 0, not {self.cfg_scale!r}")
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be at least 0, not {self.temperature!r}")
        if self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {self.top_k!r}")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of :class:`model.transformer.Transformer`.

    Parameters
    ----------
    hidden, intermediate : :class:`int`
        Width of the residual stream and of the SwiGLU MLP; multiples of 32, the MX block.
    layers, heads : :class:`int`
        Decoder layers, attention heads of ``hidden / heads`` each (even, for RoPE).
    text_vocab : :class:`int`
        Rows of the text embedding.
    codebook : :class:`int`
        Visual codes, and width of the logits.
    layout : :class:`~model.frames.FrameLayout`
        Shape of the token sequence.
    window : :class:`int`
        Visual steps a query attends to, its own included, besides the whole prelude. More than the stride,
        because the temporal attention score needs the key one stride back.
    sampling : :class:`Sampling`
        Defaults of generation.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    codebook: int
    layout: FrameLayout
    window: int
    text_vocab: int = len(WORDS)
    rope_theta: float = 10000.0
    rms_eps: float = 1e-5
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        for name in ("hidden", "intermediate"):
            value = getattr(self, name)
            if value < BLOCK or value % BLOCK:
                raise ValueError(f"{name} must be a positive multiple of {BLOCK}, not {value!r}")
        for name in ("layers", "heads", "text_vocab", "codebook"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.hidden % (2 * self.heads):
            raise ValueError(f"heads must divide hidden = {self.hidden} into even widths, not {self.heads!r}")
        if self.window <= self.layout.stride:
            raise ValueError(f"window must be more than the stride {self.layout.stride}, not {self.window!r}: "
                             "the temporal attention score needs the key of the frame before")
        if not self.rope_theta > 1:
            raise ValueError(f"rope_theta must be more than 1, not {self.rope_theta!r}")
        if not self.rms_eps > 0:
            raise ValueError(f"rms_eps must be positive, not {self.rms_eps!r}")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    @property
    def separator_code(self) -> int:
        """Code fed at separator steps: one past the codebook."""
        return self.codebook

    def to_json(self) -> str:
        """The configuration as indented JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> ModelConfig:
        """The configuration that :meth:`to_json` wrote.

        Raises
        ------
        ValueError
            The text is not JSON, lacks a field or has one that is unknown or out of range.
        """
        try:
            fields = json.loads(text)
            fields["layout"] = FrameLayout(**fields["layout"])
            fields["sampling"] = Sampling(**fields["sampling"])
            return cls(**fields)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a model configuration: {error}; write one with ModelConfig.to_json") from error


PRESETS = {
    "tiny": ModelConfig(
        hidden=64, intermediate=128, layers=2, heads=2, codebook=32, window=32,
        layout=FrameLayout(prelude=16, tokens_per_frame=16, frames=4, stride=16)),
    "fastcar-64": ModelConfig(
        hidden=128, intermediate=384, layers=6, heads=4, codebook=2048, window=128,
        layout=FrameLayout(prelude=16, tokens_per_frame=64, frames=8, stride=64)),
    "fastcar-64-wide": ModelConfig(
        hidden=192, intermediate=576, layers=6, heads=6, codebook=2048, window=128,
        layout=FrameLayout(prelude=16, tokens_per_frame=64, frames=8, stride=64)),
    "fastcar-256": ModelConfig(
        hidden=256, intermediate=704, layers=4, heads=8, codebook=2048, window=514,
        layout=FrameLayout(prelude=16, tokens_per_frame=256, frames=8, stride=257)),
}
"""``tiny`` for unit tests; ``fastcar-64`` is the trained model; ``fastcar-64-wide`` is 1.5 times as wide, for
comparisons; ``fastcar-256`` has the paper's 256 tokens a frame and one separator, and is not trained."""
