"""Finds the threshold that replays a wanted share of the eligible steps, by real generations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from model.hf.config import ReplayConfig
from model.hf.errors import ReplayError
from model.hf.hook import controller, disable_replay, enable_replay, replay_statistics
from model.hf.preset import ReplayPreset
from model.hf.statistics import QUANTILES, ReplayStatistics
from model.presets import fingerprint

Generate = Callable[[nn.Module, Tensor], object]
TRIES = 9
"""Most thresholds that are tried."""
TOLERANCE = 0.01
"""A threshold is good enough when its ratio is this near to the target."""


def calibrate_replay(model: nn.Module, prompts: Iterable[Tensor], target: float = 0.8, *,
                     config: ReplayConfig | None = None, frames: int = 4,
                     generate: Generate | None = None) -> ReplayPreset:
    """Suggest one threshold for all layers.

    Replay changes what follows, so that every threshold is tried in real generations (about ten for each prompt).

    Parameters
    ----------
    prompts : token ids, int64 ``[rows, tokens]`` each
    target : :class:`float`
        Replayed share of the steps after the warm-up frames, above 0 and below 1.
    config : ReplayConfig or None
        Everything but the threshold; None is that of the model, which then is enabled, and stays so.
    frames : :class:`int`
        Frames of each generation.
    generate : callable or None
        ``generate(model, prompt)`` makes one generation; None is greedy ``model.generate`` over ``frames`` frames.

    Raises
    ------
    ReplayError
        No configuration, or generations too short to replay anything.
    ValueError
        ``target`` or ``frames`` out of range, or no prompt.
    """
    prompts = list(prompts)
    if not 0 < target < 1:
        raise ValueError(f"target must be above 0 and below 1, not {target!r}")
    if not prompts:
        raise ValueError("at least one prompt is needed")
    enabled = config is None
    if config is None:
        config = controller(model).config
        disable_replay(model)
    if frames <= config.warmup_frames:
        raise ValueError(f"frames must be above warmup_frames = {config.warmup_frames}, not {frames!r}")
    run = generate or (lambda subject, prompt: _greedy(subject, prompt, frames * config.stride + 1))
    try:
        return _calibrate(model, prompts, target, config, run)
    finally:
        if enabled:
            enable_replay(model, config)


def _calibrate(model: nn.Module, prompts: list[Tensor], target: float, config: ReplayConfig,
               generate: Generate) -> ReplayPreset:
    low_replays = config.variant == "change"

    def measure(threshold: float) -> ReplayStatistics:
        enable_replay(model, replace(config, thresholds=threshold, thresholds_for=None))
        try:
            for prompt in prompts:
                generate(model, prompt)
            return replay_statistics(model)
        finally:
            disable_replay(model)

    dense = measure(-1.0 if low_replays else math.inf)
    if not dense.samples[0].count:
        raise ReplayError("no step could replay: the generations ended within the first "
                          f"{config.warmup_frames + 1} frames of stride {config.stride}; make them longer")
    pooled = np.concatenate([sample.values for sample in dense.samples])
    # Scores move once values are replayed, and change grows along chains; the ends leave room for that.
    margin = float(pooled.max() - pooled.min())
    ends = (float(pooled.min()) - margin, float(pooled.max()) + margin)
    if config.variant == "cosine":
        ends = (-1.0, 1.0)
    # If replay changed nothing and rows decided alone, the quantile would be the answer.
    guess = float(np.quantile(pooled, target if low_replays else 1 - target))
    ratio, threshold = search(lambda value: float(measure(value).ratio()), target, guess,
                              never=ends[not low_replays], always=ends[low_replays])
    quantiles = {str(level): tuple(float(np.quantile(sample.values, level)) for sample in dense.samples)
                 for level in QUANTILES}
    found = replace(config, thresholds=threshold, thresholds_for=config.variant)
    return ReplayPreset(config=found, fingerprint=fingerprint(model), ratio=ratio, target=target, quantiles=quantiles)


def search(measure: Callable[[float], float], target: float, guess: float, never: float,
           always: float) -> tuple[float, float]:
    """(ratio, threshold), of those measured the nearest to ``target``.

    ``measure`` gives the ratio of a threshold: near 0 at ``never``, near 1 at ``always``, noisy between. It is asked
    for ``guess`` first, then within the bracket, on its line and at its middle by turns.
    """
    tried: list[tuple[float, float]] = []
    below, above = (0.0, never), (1.0, always)
    threshold = guess
    for attempt in range(TRIES):
        point = (measure(threshold), threshold)
        tried.append(point)
        if abs(point[0] - target) <= TOLERANCE:
            break
        below, above = (point, above) if point[0] < target else (below, point)
        share = (target - below[0]) / (above[0] - below[0]) if attempt % 2 == 0 else 0.5
        threshold = below[1] + (above[1] - below[1]) * share
    return min(tried, key=lambda point: abs(point[0] - target))


def _greedy(model: Any, prompt: Tensor, tokens: int) -> None:
    with torch.inference_mode():
        model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=tokens,
                       min_new_tokens=tokens)
