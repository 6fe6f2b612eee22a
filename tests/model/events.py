"""All that is decided in a generation, in order and with the margin by which: to compare a row in two batches."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from model import generate as own
from model import sampling
from model.gates import DenseGate, Gate, temporal_scores
from model.vilau import generate as vilau
from model.vilau import sampling as vilau_sampling

ROUNDING = 1e-5
"""Kernels of matrix products depend on the number of rows: a decision closer than this may fall either way."""


@dataclass
class Events:
    """Per video a list of (what, choice, margin)."""

    videos: list[list[tuple[str, int, float]]] = field(default_factory=list)


def record(monkeypatch: Any, run: Callable[..., Any], gate: Gate | None, videos: int) -> Events:
    """Call ``run(gate=..., observer=...)``, which generates ``videos`` videos."""
    events = Events([[] for _ in range(videos)])
    inverse_cdf = sampling.inverse_cdf

    def drawn(chances: Tensor, uniforms: Tensor) -> Tensor:
        codes = inverse_cdf(chances, uniforms)
        limits = torch.nn.functional.pad(chances.cumsum(dim=1), (1, 0))
        ends = torch.stack((codes, codes + 1), dim=1)
        margins = (limits.gather(1, ends) - uniforms[:, None] * limits[:, -1:]).abs().min(dim=1).values
        add("code", codes, margins)
        return codes

    def guided(logits: Tensor, count: int, scale: float) -> Tensor:
        result = sampling.guide(logits, count, scale)
        best = result.topk(2, dim=1)
        # Under sampling this says nothing, and the draw's own event follows.
        add("largest", best.indices[:, 0], best.values[:, 0] - best.values[:, 1])
        return result

    def add(what: str, choices: Tensor, margins: Tensor) -> None:
        for video, (choice, margin) in enumerate(zip(choices.tolist(), margins.tolist(), strict=True)):
            events.videos[video].append((what, choice, margin))

    def observe(item: Any) -> None:
        margins = _margins(gate, item)
        for row, computed in enumerate(item.result.computed.tolist()):
            what = f"row {row // videos} of the pair, layer {item.layer}, step {item.step.number}"
            events.videos[row % videos].append((what, int(computed), margins[row]))

    with monkeypatch.context() as patch:
        for module in (sampling, vilau_sampling):
            patch.setattr(module, "inverse_cdf", drawn)
        for module in (own, vilau):
            patch.setattr(module, "guide", guided)
        run(gate=gate, observer=observe)
    return events


def _margins(gate: Gate | None, item: Any) -> list[float]:
    """Distance of every row's statistic from the threshold; infinite where there is nothing to decide."""
    rows = len(item.result.computed)
    if not item.step.eligible or gate is None or isinstance(gate, DenseGate):
        return [math.inf] * rows
    if hasattr(item, "raw_query"):
        statistic = temporal_scores(gate.variant, item.raw_query, item.query, item.aligned_key).mean(dim=1)
    else:
        statistic = gate.statistic(item.layer, item.step, item.x, item.scores)
    return (statistic - gate.thresholds).abs().tolist()


def differences(alone: list[tuple[str, int, float]], beside: list[tuple[str, int, float]], where: str) -> list[str]:
    """Report of a difference that rounding explains: at most one, because what follows it may be anything.

    Raises
    ------
    AssertionError
        The first difference has a margin that rounding does not explain, or one list is longer.
    """
    for (what, choice, margin), (other_what, other_choice, _) in zip(alone, beside):
        assert what == other_what, f"{where}: {what} alone is {other_what} in the batch"
        if choice != other_choice:
            report = f"{where}: {what}: {choice} alone, {other_choice} in the batch, margin {margin:.3g}"
            assert margin < ROUNDING, report
            return [report]
    assert len(alone) == len(beside), f"{where}: {len(alone)} decisions alone, {len(beside)} in the batch"
    return []
