"""How many rows to evaluate when only some need it.

A matrix product of few rows can cost more than one of all of them (float32 on a CPU at 4096 x 11008: seven rows
100 ms, eight 68 ms), so that gathering would be slower than a dense step. Costs are measured once per shape.
"""

from __future__ import annotations

from functools import cache
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

WORTH_MEASURING = 1 << 22
"""Weights of a projection from which a plan is measured; below, the difference is not worth it."""
REPEATS = 3


def evaluate_all(mlp: nn.Module, rows: int) -> tuple[bool, ...]:
    """For 0..``rows`` rows that compute: whether evaluating all ``rows`` rows is faster than gathering them.

    The same answer for the same shape, type and thread count all through a process, so that results repeat.
    """
    gate = getattr(mlp.gate_proj, "weight", None)
    if rows < 3 or not isinstance(gate, Tensor) or gate.device.type != "cpu" or gate.numel() < WORTH_MEASURING \
            or not gate.is_floating_point() or gate.ndim != 2:
        return (False,) * (rows + 1)
    return _measured(tuple(gate.shape), gate.dtype, rows, torch.get_num_threads())


@cache
def _measured(shape: tuple[int, int], dtype: torch.dtype, rows: int, threads: int) -> tuple[bool, ...]:
    # One projection stands for the three; its own weight, as calling the model's would fire hooks on it.
    weight = torch.full(shape, 0.01, dtype=dtype)
    inputs = torch.ones(rows, shape[1], dtype=dtype)
    times = [0.0]
    with torch.inference_mode():
        for count in range(1, rows + 1):
            linear(inputs[:count], weight)
            times.append(min(_timed(inputs[:count], weight) for _ in range(REPEATS)))
    return tuple(time >= times[rows] for time in times[:rows]) + (False,)


def _timed(inputs: Tensor, weight: Tensor) -> float:
    start = perf_counter()
    linear(inputs, weight)
    return perf_counter() - start
