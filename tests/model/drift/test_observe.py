"""What is seen inside a rollout: distances that are known, replays and ages."""

import numpy as np
import torch

from model.config import PRESETS
from model.drift.observe import DenseOutputs, Divergence, Inside
from model.gates import Decision, Rows, Step
from model.generate import LayerStep
from model.replay import StepResult

CONFIG = PRESETS["tiny"]
ROWS = Rows(seeds=(0, 1), guided=True)


def seen(frame: int, index: int, layer: int, y: torch.Tensor, computed: list[bool]) -> LayerStep:
    rows = torch.tensor(computed)
    return LayerStep(layer=layer, step=Step.at(frame * CONFIG.layout.stride + index, CONFIG.layout), x=y, scores=None,
                     decision=Decision(eligible=frame > 0, compute=rows), result=StepResult(y=y, computed=rows))


def test_distances_replays_and_ages(tmp_path):
    torch.manual_seed(0)
    frames, stride = 3, CONFIG.layout.stride
    outputs = torch.randn(frames * stride, CONFIG.layers, ROWS.count, CONFIG.hidden)
    dense = DenseOutputs(tmp_path / "dense", CONFIG, ROWS.count, frames, create=True)
    for number in range(frames * stride):
        for layer in range(CONFIG.layers):
            dense.keep(seen(number // stride, number % stride, layer, outputs[number, layer], [True] * 4))
    observer = Divergence(DenseOutputs(tmp_path / "dense", CONFIG, ROWS.count, frames), CONFIG, ROWS, frames)
    offset = torch.zeros(ROWS.count, CONFIG.hidden)
    offset[1, 0], offset[3, :2] = 3.0, torch.tensor([3.0, 4.0])  # both rows of video 1: 3 and 5
    for number in range(frames * stride):
        frame = number // stride
        for layer in range(CONFIG.layers):
            y = outputs[number, layer] + (offset if frame == 2 and layer == 1 else 0)
            # Video 0 replays its first row in frames 1 and 2, video 1 its second row in frame 2.
            computed = [frame == 0, True, True, frame < 2]
            observer(seen(frame, number % stride, layer, y, computed))
    found = observer.result()
    assert found.steps.tolist() == [2 * stride] * 3
    assert found.replayed[:, 0].tolist() == [[0, 0], [stride, 0], [stride, stride]]
    assert found.age[:, 1].tolist() == [[0, 0], [stride, 0], [2 * stride, stride]]
    assert found.ages.tolist() == [[0, 2 * stride, stride]] * 2
    assert (found.distance[:2] == 0).all() and (found.distance[2, 0] == 0).all() and found.distance[2, 1, 0] == 0
    np.testing.assert_allclose(found.distance[2, 1, 1], 4, atol=5e-3)
    norms = outputs.norm(dim=3).unflatten(0, (frames, stride)).mean(dim=1).unflatten(2, (2, 2)).mean(dim=2)
    np.testing.assert_allclose(found.size, norms.numpy(), rtol=1e-3)


def test_batches_are_joined_in_order():
    def part(value: int, videos: int) -> Inside:
        full = np.full((2, 1, videos), value)
        return Inside(steps=np.array([4, 4]), replayed=full, age=full, ages=np.full((1, 2), value), distance=full,
                      size=full)

    joined = Inside.joined([part(1, 2), part(5, 1)])
    assert joined.replayed[0, 0].tolist() == [1, 1, 5] and joined.ages.tolist() == [[6, 6]]
