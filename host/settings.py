"""What a user asks for when generating, checked before anything is loaded."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path

from host.boards import split
from hw.config import PRESETS
from model.config import POSITIONS

GATES = ("tas", "change")
VARIANTS = ("paper", "released", "cosine")
DTYPES = ("float32", "bfloat16", "float16")
DEFAULT_GATE = "change"
DEFAULT_RATIO = 0.65
"""Share of eligible row steps that replay unless the user says otherwise. Objects still move (README, evidence)."""


class SettingsError(ValueError):
    """A setting that makes no sense; the message says what, the value and what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One ``generate`` command.

    ``threshold``: one number, or one per layer; ``replay_ratio``: target over eligible steps, thresholds are looked up.
    At most one of ``threshold``, ``replay_ratio`` and ``dense`` is given; with none of them the ratio is
    :data:`DEFAULT_RATIO`. Video i has prompt ``i // num_videos`` and seed ``seed + i``. ``frames``, ``cfg_scale``,
    ``window``, ``temperature``, ``top_k`` and ``top_p`` ``None``: the model's own. ``device`` and ``dtype``: of a
    VILA-U model.
    """

    prompts: tuple[str, ...]
    out: Path
    frames: int | None = None
    seed: int = 0
    num_videos: int = 1
    cfg_scale: float | None = None
    gate: str = DEFAULT_GATE
    threshold: tuple[float, ...] | None = None
    replay_ratio: float | None = None
    dense: bool = False
    joint_pairs: bool = False
    variant: str = "paper"
    window: int | None = None
    positions: str = "sequence"
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    board: str = "sim"
    preset: str = "sim"
    model: Path | None = None
    device: str = "cpu"
    dtype: str = "float32"
    dry_run: bool = False
    verify: bool = False
    fps: int = 8
    upscale: int = 4

    def __post_init__(self) -> None:
        if not self.prompts:
            raise SettingsError("no prompt; give one with --prompt, e.g. --prompt 'a red circle moves right'")
        try:
            split(self.board)
        except ValueError as error:
            raise SettingsError(str(error)) from error
        for name, allowed in (("preset", tuple(PRESETS)), ("gate", GATES), ("variant", VARIANTS),
                              ("positions", POSITIONS), ("dtype", DTYPES)):
            if getattr(self, name) not in allowed:
                raise SettingsError(f"unknown {name} {getattr(self, name)!r}; known: {', '.join(allowed)}")
        if self.variant != "paper" and self.gate != "tas":
            raise SettingsError(f"variant {self.variant!r} is one of the tas gate's, not of gate {self.gate!r}; "
                                "add --gate tas")
        for name in ("num_videos", "fps", "upscale", "frames", "window", "top_k"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if not 0 <= self.seed < 1 << 62:
            raise SettingsError(f"seed must be in 0..2**62 - 1, not {self.seed!r}")
        if self.cfg_scale is not None and not 0 <= self.cfg_scale < math.inf:
            raise SettingsError(f"cfg_scale must be at least 0 (1 turns guidance off), not {self.cfg_scale!r}")
        if sum((self.threshold is not None, self.replay_ratio is not None, self.dense)) > 1:
            raise SettingsError("threshold, replay ratio and dense exclude each other; give one of them")
        if self.temperature is not None and not 0 <= self.temperature < math.inf:
            raise SettingsError(f"temperature must be at least 0, not {self.temperature!r}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise SettingsError(f"top_p must be above 0 and at most 1, not {self.top_p!r}")
        if self.threshold is not None and (not self.threshold or any(math.isnan(t) for t in self.threshold)):
            raise SettingsError(f"threshold must be a number, or one per layer, inf and -inf included, "
                                f"not {self.threshold!r}")
        if self.replay_ratio is not None and not 0 <= self.replay_ratio < 1:
            raise SettingsError(f"replay_ratio must be in 0..1 (1 excluded), not {self.replay_ratio!r}")

    @property
    def ratio(self) -> float:
        """Target ratio; without meaning where a threshold is given."""
        if self.dense:
            return 0.0
        return DEFAULT_RATIO if self.replay_ratio is None else self.replay_ratio

    def videos(self) -> list[tuple[str, int]]:
        """Prompt and seed of every video."""
        prompts = [prompt for prompt in self.prompts for _ in range(self.num_videos)]
        return [(prompt, self.seed + number) for number, prompt in enumerate(prompts)]

    def to_dict(self) -> dict[str, object]:
        """All settings, JSON-ready."""
        values = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}
        if self.threshold is not None:
            values["threshold"] = [json_number(threshold) for threshold in self.threshold]
        return values


def json_number(value: float) -> float | str:
    """``value``, or its name where JSON has no number for it."""
    return value if math.isfinite(value) else str(value)
