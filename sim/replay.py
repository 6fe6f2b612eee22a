"""Jobs of a dumped generation (model/dump.py): what the board must do, step by step, to give the dump's outputs."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from hw.config import AcceleratorConfig
from model.dump import Dump
from model.integer import MlpWeights, MxMatrix
from sim.jobs import Job


def dump_jobs(config: AcceleratorConfig, dump: Dump,
              weights: list[MlpWeights]) -> Iterator[tuple[tuple[int, int], Job]]:
    """((step, layer), job) for every job of the generation, in order.

    ``weights``: of each layer, as ``model.engine.quantised_weights`` gives them. Where the dump's gate is the TAS the
    job gets the scores and decides itself; else the mask is the host's. The replay cache holds the outputs of the
    step one stride earlier, and a recognisable pattern in frame 0.
    """
    arrays, gate = dump.arrays, dump.manifest["gate"]
    stride = dump.config.layout.stride
    steps, layers, rows, hidden = arrays["outputs"].shape
    every = (1 << rows) - 1
    for step in range(steps):
        eligible = bool(arrays["eligible"][step])
        for layer in range(layers):
            old = arrays["outputs"][step - stride, layer] if eligible else np.full((rows, hidden), 0x5A5A, np.uint16)
            computed = arrays["computed"][step, layer]
            choice: dict[str, Any] = {"mask": sum(int(bit) << row for row, bit in enumerate(computed))}
            if eligible and gate["source"] == "tas":
                choice |= {"scores": arrays["scores_fixed"][step, layer], "threshold": gate["thresholds_fixed"][layer]}
            x = MxMatrix(arrays["input_codes"][step, layer], arrays["input_scales"][step, layer])
            yield (step, layer), Job(config=config, weights=weights[layer], x=x, old=old, active=every, **choice)
