"""Timed decoding of given tokens, for benchmarks: the MLPs alone and whole steps, with counted MLP evaluations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from model.hf.config import ReplayConfig
from model.hf.decoder import find_decoder, layers_of
from model.hf.hook import disable_replay, enable_with, replay_statistics
from model.hf.layer import run_needed_rows

PRELUDE = 8
VOCABULARY = 256
MODES = ("dense", "replay", "select")
"""Without replay; as :func:`model.hf.enable_replay` does it; and computing every row, then selecting, as the paper's
released code does."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Times in seconds, over the steps after frame 0; ``calls`` counts evaluations of a down projection there."""

    step_s: float
    mlp_s: float
    calls: int
    steps: int
    replay_ratio: float


def random_llama(layers: int, hidden: int, intermediate: int, heads: int, positions: int) -> LlamaForCausalLM:
    """A float32 Llama of random weights, seed 0."""
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=positions)).eval()


def random_tokens(rows: int, steps: int, seed: int) -> Tensor:
    """Token ids ``[rows, PRELUDE + steps]`` to be fed; every run gets the same, so that its work is the same."""
    return torch.from_numpy(np.random.default_rng(seed).integers(0, VOCABULARY, (rows, PRELUDE + steps)))


def select_after(mlp: Callable[[Tensor], Tensor], x: Tensor, cached: Tensor, compute: np.ndarray, full: bool) -> Tensor:
    """The baseline: evaluates every row, then selects; of the arguments, ``full`` does not matter."""
    return torch.where(torch.from_numpy(compute)[:, None, None], mlp(x), cached)


def decode(model: nn.Module, ids: Tensor, warmup: int, step: Callable[[int], None] = lambda number: None) -> float:
    """Feed ``ids``, the prelude at once and then token by token; seconds of the steps after the first ``warmup``.

    ``step`` is called before each visual step.
    """
    name = "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"
    given = {name: DynamicCache(), "use_cache": True}
    start = perf_counter()
    with torch.inference_mode():
        model(ids[:, :PRELUDE], **given)
        for number in range(ids.shape[1] - PRELUDE):
            step(number)
            if number == warmup:
                start = perf_counter()
            model(ids[:, PRELUDE + number:PRELUDE + number + 1], **given)
    return perf_counter() - start


def threshold_of_one_layer(model: nn.Module, config: ReplayConfig, ids: Tensor, ratio: float) -> float:
    """The threshold that replays ``ratio`` of the eligible steps of a model of one layer, fed ``ids``.

    Its scores depend on the tokens alone, so that one run that replays everything tells them all.
    """
    enable_with(model, replace(config, thresholds=float("-inf")), run_needed_rows)
    try:
        decode(model, ids, 0)
        scores = replay_statistics(model).samples[0].values.reshape(-1, len(ids)).copy()
    finally:
        disable_replay(model)
    deciding = np.sort(scores.min(axis=1) if config.groups == "batch" else scores.flatten())[::-1]
    replayed = round(ratio * len(deciding))
    return float(deciding[replayed - 1:replayed + 1].astype(np.float64).mean())


def timed_run(model: nn.Module, config: ReplayConfig, ids: Tensor, mode: str) -> Run:
    """One run in one of :data:`MODES`. Frame 0 is the warm-up and is not timed."""
    clock = _MlpClock(model)
    if mode != "dense":
        enable_with(model, config, run_needed_rows if mode == "replay" else select_after)
    try:
        step_s = decode(model, ids, config.stride, lambda number: clock.restart(number == config.stride))
        ratio = 0.0 if mode == "dense" else float(replay_statistics(model).ratio())
    finally:
        if mode != "dense":
            disable_replay(model)
        clock.remove()
    return Run(step_s=step_s, mlp_s=clock.seconds, calls=clock.calls, replay_ratio=ratio,
               steps=ids.shape[1] - PRELUDE - config.stride)


class _MlpClock:
    """Hooks that add up the time inside MLP modules, replay's share included, and count evaluations."""

    def __init__(self, model: nn.Module):
        self.seconds, self.calls, self._start = 0.0, 0, 0.0
        self._handles = []
        for layer in layers_of(find_decoder(model)):
            self._handles += [layer.mlp.register_forward_pre_hook(self._begin),
                              layer.mlp.register_forward_hook(self._end),
                              layer.mlp.down_proj.register_forward_hook(self._evaluated)]

    def restart(self, now: bool) -> None:
        if now:
            self.seconds, self.calls = 0.0, 0

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _begin(self, *_: object) -> None:
        self._start = perf_counter()

    def _end(self, *_: object) -> None:
        self.seconds += perf_counter() - self._start

    def _evaluated(self, *_: object) -> None:
        self.calls += 1
