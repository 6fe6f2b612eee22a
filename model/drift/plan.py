"""What a study runs: its settings, and its rollouts by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OTHER_SEED = 1_000_000
"""Added to every seed where a dense rollout shows what "another video of the same prompt" measures."""
WINDOW_RATIO = 0.8
"""Replay ratio at which attention windows are tried."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every stored result of a study depends on; results of other settings are never mixed with it.

    Parameters
    ----------
    fingerprint : :class:`str`
        Of the weights, see :func:`model.presets.fingerprint`.
    engine : ``"float"`` or ``"integer"``
    frames : :class:`int`
        Length of every rollout; shorter lengths are prefixes, because no gate looks ahead.
    prompts, seed : :class:`int`
        Held-out prompts; video n has seed ``seed + n``.
    batch : :class:`int`
        Videos generated together: products of matrices round differently for other numbers of rows.
    forced : :class:`int`
        The first prompts, run a second time with the dense codes fed (teacher forcing).
    calibration : :class:`int`
        Training prompts that thresholds are found on.
    version : :class:`int`
        Of the measures; raised when one changes its meaning.
    """

    fingerprint: str
    engine: str
    frames: int
    prompts: int
    seed: int
    batch: int
    forced: int
    calibration: int
    version: int = 1

    def __post_init__(self) -> None:
        for name, least in (("frames", 4), ("prompts", 2), ("batch", 1), ("forced", 2), ("calibration", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)!r}")
        if self.forced > self.prompts:
            raise ValueError(f"forced must be at most the number of prompts {self.prompts}, not {self.forced!r}")

    @property
    def seeds(self) -> list[int]:
        """One per prompt."""
        return list(range(self.seed, self.seed + self.prompts))

    @property
    def batches(self) -> list[slice]:
        """Videos that are generated together."""
        return [slice(start, min(start + self.batch, self.prompts)) for start in range(0, self.prompts, self.batch)]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One rollout of all prompts.

    Parameters
    ----------
    gate : :class:`str`
        A name of :data:`model.gates.GATES`.
    target : :class:`float`
        Eligible replay ratio that its threshold was calibrated for; 0 for dense.
    window : :class:`int` or None
        Visual steps attended to; None is the model's own window.
    engine : ``"float"``, ``"integer"`` or None
        None is the study's own engine.
    seed_offset : :class:`int`
        Added to the seed of every video.
    """

    gate: str = "dense"
    target: float = 0.0
    window: int | None = None
    engine: str | None = None
    seed_offset: int = 0

    @property
    def name(self) -> str:
        """Unique in a study, and a file name."""
        return "-".join([self.gate, *([f"{self.target:.4g}"] if self.target else []),
                         *([f"window-{self.window}"] if self.window else []),
                         *([self.engine] if self.engine else []), *(["other-seed"] if self.seed_offset else [])])


DENSE = Run()
"""The reference of all others."""
OTHER = Run(seed_offset=OTHER_SEED)
"""Dense again with other random numbers."""


def runs(gates: Sequence[str], ratios: Sequence[float], windows: Sequence[int | None], engine: str) -> list[Run]:
    """All rollouts of a study but :data:`DENSE`: controls first, then gate by gate.

    ``ratios`` of 0 are dense already. Windows are tried where :data:`WINDOW_RATIO` is one of the ratios, dense too.
    """
    wanted = sorted({ratio for ratio in ratios if ratio})
    limited = [window for window in windows if window] if WINDOW_RATIO in wanted else []
    found = [OTHER, *(Run(window=window) for window in limited)]
    if engine == "integer":
        found.append(Run(engine="float"))
    for gate in gates:
        found += [Run(gate=gate, target=ratio) for ratio in wanted]
        found += [Run(gate=gate, target=WINDOW_RATIO, window=window) for window in limited]
    return found
