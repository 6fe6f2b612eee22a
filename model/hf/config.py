"""What replay on a Hugging Face model needs to know; validates itself and round-trips through JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields

from model.frames import FrameLayout

VARIANTS = ("paper", "cosine", "change")
GROUPS = ("rows", "pairs", "batch")


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Gate, frame layout and limits of replay.

    Parameters
    ----------
    variant : ``"paper"``, ``"cosine"`` or ``"change"``
        What is compared, per layer and row. ``paper``: mean over heads of q.k / sqrt(d), query and key after RoPE
        (FastCar eq. 5), at or above the threshold replays. ``cosine``: the same of normalised vectors, in -1..1.
        ``change`` (this project's): ``|x - x_ref| / |x|`` of the MLP input x against that of the cached value, at or
        below the threshold replays.
    thresholds : :class:`float`, or one per layer
        All layers of the model count, excluded ones too. Infinities mean always or never.
    tokens_per_frame : :class:`int`
        Visual codes of one frame.
    stride : :class:`int`
        Positions from a token to the same token of the next frame: tokens_per_frame plus separators.
    prelude : :class:`int` or None
        Positions before frame 0: prompt with its padding, and whatever follows it with another stride. Frames that
        lie in the prompt after it are computed and may be replayed from. None: everything that is fed before the
        first single-token call that continues a cache.
    separator_ids : tuple of :class:`int` or None
        Token ids at the last ``stride - tokens_per_frame`` positions of every frame; they are checked. None: learned
        from frame 0, and a separator that contradicts the stride is looked for. ``()``: nothing is checked.
    max_consecutive : :class:`int` or None
        Most frames in a row that one value may be replayed; None is no limit.
    groups : ``"rows"``, ``"pairs"`` or ``"batch"``
        Who decides jointly: nobody, row b with its guidance twin ``b + rows / 2``, or all rows. A group replays only
        if each of its rows would.
    guided : :class:`bool`
        The second half of the batch are the unconditional twins of the first.
    exclude_layers : tuple of :class:`int`
        Layers that stay dense.
    warmup_frames : :class:`int`
        Frames at the start that never replay, at least 1.
    thresholds_for : :class:`str` or None
        Variant the thresholds were calibrated for; None is ``variant``.

    Raises
    ------
    ValueError
        A value is not allowed; the message names it.
    """

    variant: str = "paper"
    thresholds: float | tuple[float, ...]
    tokens_per_frame: int
    stride: int
    prelude: int | None = None
    separator_ids: tuple[int, ...] | None = None
    max_consecutive: int | None = None
    groups: str = "rows"
    guided: bool = False
    exclude_layers: tuple[int, ...] = ()
    warmup_frames: int = 1
    thresholds_for: str | None = None

    def __post_init__(self) -> None:
        for name in ("thresholds", "separator_ids", "exclude_layers"):
            value = getattr(self, name)
            object.__setattr__(self, name, tuple(value) if isinstance(value, list | tuple) else value)
        self._check_gate()
        self._check_layout()
        if self.max_consecutive is not None and not _at_least(self.max_consecutive, 1):
            raise ValueError(f"max_consecutive must be None or at least 1, not {self.max_consecutive!r}")
        if self.groups not in GROUPS:
            raise ValueError(f"groups must be one of {', '.join(GROUPS)}, not {self.groups!r}")
        if self.groups == "pairs" and not self.guided:
            raise ValueError("groups='pairs' needs guided=True: the second half of the batch unconditional")
        if not isinstance(self.exclude_layers, tuple) or not all(_at_least(n, 0) for n in self.exclude_layers):
            raise ValueError(f"exclude_layers must be layer numbers from 0, not {self.exclude_layers!r}")
        if not _at_least(self.warmup_frames, 1):
            raise ValueError(f"warmup_frames must be at least 1, frame 0 never replays, not {self.warmup_frames!r}")

    def _check_gate(self) -> None:
        if self.variant == "released":
            raise ValueError("variant 'released' takes the query before RoPE, and a registered attention function sees "
                             "queries only after it; use 'paper', with thresholds calibrated for it")
        if self.variant not in VARIANTS:
            raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, not {self.variant!r}")
        if self.thresholds_for not in (None, self.variant):
            raise ValueError(f"the thresholds were calibrated for {self.thresholds_for!r}, not for {self.variant!r}; "
                             f"calibrate again, or set thresholds_for={self.variant!r} to use them all the same")
        values = self.thresholds if isinstance(self.thresholds, tuple) else (self.thresholds,)
        if not values or not all(isinstance(v, int | float) and not math.isnan(v) for v in values):
            raise ValueError(f"thresholds must be a number, or one per layer, not {self.thresholds!r}")
        if self.variant == "cosine" and any(abs(v) > 1 and not math.isinf(v) for v in values):
            raise ValueError(f"a cosine threshold must be in -1..1 or infinite, not {self.thresholds!r}")

    def _check_layout(self) -> None:
        if self.prelude is not None and not _at_least(self.prelude, 1):
            raise ValueError(f"prelude must be None or at least 1, not {self.prelude!r}")
        # The layout validates the rest.
        layout = self.layout(1 if self.prelude is None else self.prelude)
        if self.separator_ids and len(self.separator_ids) != layout.separators:
            raise ValueError(f"{len(self.separator_ids)} separator_ids, but stride - tokens_per_frame = "
                             f"{self.stride} - {self.tokens_per_frame} = {layout.separators}; the stride counts the "
                             f"separators, so it should be {self.tokens_per_frame + len(self.separator_ids)}")

    def layout(self, prelude: int) -> FrameLayout:
        """Frame layout of a sequence whose frame 0 begins at position ``prelude``."""
        return FrameLayout(prelude=prelude, tokens_per_frame=self.tokens_per_frame, frames=1, stride=self.stride)

    def per_layer(self, layers: int) -> tuple[float, ...]:
        """One threshold per layer. Raises ValueError if another number of them, or a wrong layer, was given."""
        if any(layer >= layers for layer in self.exclude_layers):
            raise ValueError(f"exclude_layers must be below {layers}, the layer count, not {self.exclude_layers}")
        if not isinstance(self.thresholds, tuple):
            return (self.thresholds,) * layers
        if len(self.thresholds) != layers:
            raise ValueError(f"{len(self.thresholds)} thresholds for {layers} layers; give one, or one per layer")
        return self.thresholds

    def to_json(self) -> str:
        """One line of standard JSON; infinite thresholds are strings."""
        content = asdict(self)
        values = content["thresholds"]
        content["thresholds"] = [_encode(v) for v in values] if isinstance(values, tuple) else _encode(values)
        return json.dumps(content, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> ReplayConfig:
        """The inverse of :meth:`to_json`. Raises ValueError for anything else."""
        content = json.loads(text)
        known = {field.name for field in fields(cls)}
        if not isinstance(content, dict) or not set(content) <= known:
            raise ValueError(f"a replay configuration has the keys {', '.join(sorted(known))}, not {text}")
        missing = {"thresholds", "tokens_per_frame", "stride"} - set(content)
        if missing:
            raise ValueError(f"a replay configuration needs {', '.join(sorted(missing))}")
        values = content["thresholds"]
        content["thresholds"] = [float(v) for v in values] if isinstance(values, list) else float(values)
        return cls(**content)


def _encode(threshold: float) -> float | str:
    return str(threshold) if math.isinf(threshold) else threshold


def _at_least(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
