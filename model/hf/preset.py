"""Calibrated replay settings for one set of weights."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from model.hf.config import ReplayConfig
from model.hf.errors import ReplayError
from model.presets import fingerprint


@dataclass(frozen=True, kw_only=True)
class ReplayPreset:
    """A configuration whose threshold was calibrated, and the weights it holds for.

    Parameters
    ----------
    fingerprint : :class:`str`
        Of the weights, as ``model.presets.fingerprint`` makes it.
    ratio, target : :class:`float`
        Eligible replay ratio as measured, and as asked for.
    quantiles : dict of tuples
        Quantile level -> what the gate compares, per participating layer, without replay.
    """

    config: ReplayConfig
    fingerprint: str
    ratio: float
    target: float
    quantiles: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def check(self, model: nn.Module) -> None:
        """Raise :exc:`ReplayError` unless ``model`` has the weights this was calibrated for."""
        found = fingerprint(model)
        if found != self.fingerprint:
            raise ReplayError(f"the preset was calibrated for weights {self.fingerprint}, these are {found}; call "
                              "calibrate_replay on this model, or pass preset.config to use its threshold all the same")

    def save(self, path: Path | str) -> None:
        """Write a JSON file."""
        content = {"fingerprint": self.fingerprint, "ratio": self.ratio, "target": self.target,
                   "quantiles": self.quantiles, "config": json.loads(self.config.to_json())}
        Path(path).write_text(json.dumps(content, indent=2) + "\n")

    @classmethod
    def load(cls, path: Path | str) -> ReplayPreset:
        """Read what :meth:`save` wrote. Raises :exc:`ReplayError` for a damaged file."""
        try:
            content = json.loads(Path(path).read_text())
            quantiles = {level: tuple(values) for level, values in content["quantiles"].items()}
            return cls(config=ReplayConfig.from_json(json.dumps(content["config"])), quantiles=quantiles,
                       **{name: content[name] for name in ("fingerprint", "ratio", "target")})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReplayError(f"{path} is no replay preset ({error}); call calibrate_replay and save again") from error
