"""Teacher forcing against free generation, and the divergence of logits."""

import dataclasses

import pytest
import torch

from model.config import PRESETS
from model.drift.forced import DenseLogits, LogitDrift, force
from model.gates import DenseGate, RandomGate
from model.generate import generate
from model.replay import FloatMlp
from tests.model.small import PROMPTS, SEPARATED, random_model

SEEDS = [1, 2, 3, 4]


def forced(transformer, codes, gate, on_logits, window=None):
    seen = []
    force(transformer, PROMPTS, SEEDS, codes, gate=gate, engine=FloatMlp(transformer), window=window,
          observer=lambda item: seen.append((item.layer, item.step.number, item.result.y.clone())), on_logits=on_logits)
    return seen


@pytest.mark.parametrize("config", [PRESETS["tiny"], SEPARATED], ids=["plain", "separators"])
@pytest.mark.parametrize("window", [None, 10])
def test_on_its_own_codes_a_gate_does_what_it_did(config, window):
    transformer = random_model(config)
    transformer.config = dataclasses.replace(transformer.config, sampling=dataclasses.replace(
        transformer.config.sampling, temperature=0.0))
    free = []
    made = generate(transformer, PROMPTS, SEEDS, frames=3, gate=RandomGate(0.5), window=window,
                    observer=lambda item: free.append((item.layer, item.step.number, item.result.y.clone())))
    best = torch.zeros_like(made.codes)

    def keep(frame, index, logits):
        best[:, frame, index] = logits.argmax(dim=1)

    again = forced(transformer, made.codes, RandomGate(0.5), keep, window)
    assert torch.equal(best, made.codes)
    assert [item[:2] for item in again] == [item[:2] for item in free]
    assert all(torch.equal(mine[2], theirs[2]) for mine, theirs in zip(again, free))


def test_divergence_of_dense_is_zero_and_of_replay_is_not(tmp_path):
    transformer = random_model()
    codes = generate(transformer, PROMPTS, SEEDS, frames=3).codes
    kept = DenseLogits(tmp_path / "logits", transformer, 4, 3, create=True)
    forced(transformer, codes, DenseGate(), kept.keep)
    dense, random = (LogitDrift(DenseLogits(tmp_path / "logits", transformer, 4, 3), 4, 3, 16, 1.0) for _ in range(2))
    forced(transformer, codes, DenseGate(), dense)
    forced(transformer, codes, RandomGate(0.9), random)
    assert (dense.divergence == 0).all() and dense.same_best == pytest.approx(1)
    assert (random.divergence[:, 0] == 0).all() and (random.divergence[:, 1:] > 0).all()
    assert random.same_best[:, 1:].mean() < 1


def test_known_divergence(tmp_path):
    """Two codes have all the chances: (3/4, 1/4) against (1/2, 1/2) is ln 2 - H(1/4) nats; the frame's mean is half."""
    transformer = random_model()
    kept = DenseLogits(tmp_path / "logits", transformer, 1, 1, create=True)
    dense, other = torch.full((1, 32), -1e4), torch.full((1, 32), -1e4)
    dense[0, 3], dense[0, 4] = torch.tensor([3.0, 1.0]).log()
    other[0, 3], other[0, 4] = 0.0, 0.0
    kept.keep(0, 0, dense)
    kept.keep(0, 1, dense)
    drift = LogitDrift(kept, 1, 1, 2, 1.0)
    drift(0, 0, other)
    drift(0, 1, dense)
    assert drift.divergence[0, 0] == pytest.approx(0.1308120 / 2, abs=1e-6)
