"""What a gate costs that never lets anything replay: paired steps of two generations, processor time."""

import statistics
import time

import pytest
import torch

from model.config import PRESETS, ModelConfig
from model.frames import FrameLayout
from model.gates import DenseGate, Rows, TasGate
from model.generate import Decoder
from model.replay import FloatMlp
from tests.model.small import random_model

WIDE = ModelConfig(hidden=1024, intermediate=2752, layers=1, heads=8, codebook=64, window=32,
                   layout=FrameLayout(prelude=16, tokens_per_frame=16, frames=8, stride=16))
SEED = 3


def extra(config: ModelConfig, threshold: float, steps: int) -> float:
    """Relative cost of a step under TAS at ``threshold`` over a dense one: median of the ratios of neighbours."""
    transformer = random_model(config)
    codes = torch.randint(config.codebook, (2,), generator=torch.Generator().manual_seed(SEED))
    decoders = []
    for gate in (DenseGate(), TasGate(threshold)):
        decoders.append(Decoder(transformer, Rows(seeds=(SEED,), guided=True), gate, FloatMlp(transformer)))
        decoders[-1].prefill(torch.zeros(2, config.layout.prelude, dtype=torch.int64))
    ratios = []
    for number in range(config.layout.stride + steps):
        taken = [0.0, 0.0]
        for which in ((0, 1), (1, 0))[number % 2]:
            started = time.process_time()
            decoders[which].step(number, codes)
            taken[which] = time.process_time() - started
        if number >= config.layout.stride:
            ratios.append(taken[1] / taken[0])
    # The geometric mean of both orders: what runs second finds the weights in the processor's cache.
    first, second = (statistics.median(ratios[parity::2]) for parity in (0, 1))
    return (first * second) ** 0.5 - 1


@pytest.mark.slow
@torch.inference_mode()
def test_a_threshold_out_of_reach_costs_under_two_percent():
    cost = {"infinite, our model": extra(PRESETS["fastcar-64"], torch.inf, 120),
            "infinite, wider layers": extra(WIDE, torch.inf, 120),
            "1e9 (scores computed), wider layers": extra(WIDE, 1e9, 120)}
    print({name: f"{100 * value:+.2f} %" for name, value in cost.items()})
    assert cost["infinite, our model"] < 0.02 and cost["infinite, wider layers"] < 0.02
    assert cost["1e9 (scores computed), wider layers"] < 0.05
