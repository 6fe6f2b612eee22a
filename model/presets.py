"""Calibrated replay thresholds beside the weights: which threshold of a gate reaches which replay ratio.

Written by ``python -m model.calibrate``. They hold for one set of weights, named by its fingerprint.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from model import checkpoint

PRESETS_FILE = "replay_presets.json"
CALIBRATE = "run python -m model.calibrate"


class PresetError(Exception):
    """Thresholds that are missing, belong to other weights, or do not reach the ratio asked for."""


def fingerprint(transformer: nn.Module) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of all weights, names included."""
    digest = hashlib.sha256()
    for name, tensor in sorted(transformer.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Replay ratio against threshold of one gate.

    Parameters
    ----------
    gate : ``"tas"`` or ``"change"``
    joint_pairs : :class:`bool`
        Whether guidance pairs decide together.
    points : tuple of (ratio, threshold)
        Eligible replay ratios as measured, ascending.
    settings : dict
        What the calibration ran on.
    """

    gate: str
    joint_pairs: bool
    points: tuple[tuple[float, float], ...]
    settings: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ratios = [ratio for ratio, _ in self.points]
        if not ratios or any(not 0 <= ratio <= 1 for ratio in ratios) or ratios != sorted(set(ratios)):
            raise ValueError(f"points need ascending ratios in 0..1, not {ratios!r}")

    def threshold(self, ratio: float) -> float:
        """Threshold for an eligible replay ``ratio``, along a line between the calibrated ones.

        Raises
        ------
        PresetError
            The ratio is outside the calibrated ones.
        """
        low, high = self.points[0][0], self.points[-1][0]
        # A calibration stops near its target: let the target itself be asked for.
        if not low - 0.02 <= ratio <= high + 0.02:
            raise PresetError(f"replay ratio {ratio!r} of gate {self.gate} is outside the calibrated "
                              f"{low:.2f}..{high:.2f}; give a threshold, "
                              f"or {CALIBRATE} --gate {self.gate} --target {ratio!r}")
        ratio = min(max(ratio, low), high)
        for (r0, t0), (r1, t1) in zip(self.points, self.points[1:]):
            if r0 <= ratio <= r1:
                return t0 + (t1 - t0) * (ratio - r0) / (r1 - r0)
        return self.points[0][1]


@dataclass(frozen=True, kw_only=True)
class ReplayPresets:
    """All curves of one set of weights."""

    fingerprint: str
    curves: tuple[Curve, ...] = ()

    def curve(self, gate: str, joint_pairs: bool = False) -> Curve:
        """The curve of a gate. Raises :exc:`PresetError` if there is none."""
        for curve in self.curves:
            if (curve.gate, curve.joint_pairs) == (gate, joint_pairs):
                return curve
        option = " --joint-pairs" if joint_pairs else ""
        raise PresetError(f"no calibration of gate {gate}{' with joint pairs' if joint_pairs else ''} for this model; "
                          f"give a threshold, or {CALIBRATE} --gate {gate}{option}")

    def with_curve(self, curve: Curve) -> ReplayPresets:
        """These presets with ``curve`` in place of the one of the same kind."""
        others = [old for old in self.curves if (old.gate, old.joint_pairs) != (curve.gate, curve.joint_pairs)]
        curves = sorted([*others, curve], key=lambda item: (item.gate, item.joint_pairs))
        return ReplayPresets(fingerprint=self.fingerprint, curves=tuple(curves))

    def save(self, folder: Path) -> Path:
        """Write :data:`PRESETS_FILE` into the model folder ``folder``; returns its path."""
        curves = [{"gate": curve.gate, "joint_pairs": curve.joint_pairs, "settings": curve.settings,
                   "points": [{"ratio": ratio, "threshold": threshold} for ratio, threshold in curve.points]}
                  for curve in self.curves]
        path = folder / PRESETS_FILE
        path.write_text(json.dumps({"fingerprint": self.fingerprint, "curves": curves}, indent=2) + "\n")
        return path


def load_presets(transformer: nn.Module, folder: Path | None = None) -> ReplayPresets:
    """Presets in the folder of the model ``transformer``; ``None`` is the shipped model's.

    Raises
    ------
    PresetError
        No such file, a damaged one, or one for other weights.
    """
    path = (checkpoint.default_dir() if folder is None else folder) / PRESETS_FILE
    if not path.is_file():
        raise PresetError(f"no calibrated thresholds {path}; give a threshold, or {CALIBRATE}")
    try:
        content = json.loads(path.read_text())
        curves = tuple(Curve(gate=item["gate"], joint_pairs=item["joint_pairs"], settings=item["settings"],
                             points=tuple((point["ratio"], point["threshold"]) for point in item["points"]))
                       for item in content["curves"])
        found = content["fingerprint"]
    except (ValueError, KeyError, TypeError) as error:
        raise PresetError(f"{path} is damaged ({error}); {CALIBRATE}") from error
    expected = fingerprint(transformer)
    if found != expected:
        raise PresetError(f"{path} was calibrated for weights {found}, these are {expected}; "
                          f"give a threshold, or {CALIBRATE}")
    return ReplayPresets(fingerprint=found, curves=curves)
