"""The integer engine: close to the float one, rounds the scores as the board does, same bits prepared or not."""

import numpy as np
import pytest
import torch

from model.config import PRESETS
from model.engine import IntegerMlp, quantised_weights
from model.gates import ChangeGate, Rows, Step, TasGate
from model.generate import generate
from model.integer import MlpWeights, MxMatrix, mlp
from model.mx import SCALE_NAN
from model.prepared import PreparedMlp
from model.replay import FloatMlp
from tests.model.small import PROMPTS, random_model


def test_integer_engine_is_close_to_the_float_engine():
    transformer = random_model()
    integer, exact = IntegerMlp.of(transformer), FloatMlp(transformer)
    x = torch.randn(20, 64, generator=torch.Generator().manual_seed(2))
    for layer in range(2):
        got, expected = integer.prefill(layer, x), exact.prefill(layer, x)
        noise = (got - expected).square().mean() / expected.square().mean()
        assert -10 * np.log10(float(noise)) > 30, f"layer {layer}: MXINT8 gives about 33 dB"


@pytest.mark.parametrize("gate", [TasGate(0.0), ChangeGate(1.0)], ids=lambda gate: gate.name)
def test_integer_generation_replays_alike(gate):
    transformer = random_model()
    integer = generate(transformer, PROMPTS, [1, 2, 3, 4], gate=gate, engine=IntegerMlp.of(transformer)).statistics
    exact = generate(transformer, PROMPTS, [1, 2, 3, 4], gate=gate).statistics
    assert 0.1 < exact.replay_ratio_eligible < 0.9
    assert integer.replay_ratio_eligible == pytest.approx(exact.replay_ratio_eligible, abs=0.05)


def test_integer_generation_is_deterministic_and_independent_of_the_batch():
    transformer = random_model()
    engine = IntegerMlp.of(transformer)
    together = generate(transformer, PROMPTS[:3], [1, 2, 3], gate=ChangeGate(1.0), engine=engine).codes
    alone = torch.cat([generate(transformer, [prompt], [seed], gate=ChangeGate(1.0), engine=engine).codes
                       for prompt, seed in zip(PROMPTS, [1, 2, 3])])
    assert torch.equal(together, alone)


def test_scores_are_compared_in_fixed_point():
    """Half an LSB below the threshold rounds up to it: the row replays, in float arithmetic it would not."""
    config = PRESETS["tiny"]
    gate = TasGate(1.0)
    gate.begin(config, Rows(seeds=(0,), guided=False))
    scores = torch.full((1, 2), 1.0 - 2.0 ** -18)
    decision = gate.decide(0, Step.at(config.layout.stride, config.layout), torch.zeros(1, config.hidden), scores)
    assert not decision.compute.item() and not (scores.mean() >= 1.0).item()
    assert decision.rule.tas_scores.sum() >= decision.rule.tas_threshold


def spread(rng: np.random.Generator, shape: tuple[int, int], octaves: float) -> MxMatrix:
    """Blocks whose scales differ by up to ``octaves``, some of them zero."""
    rows, width = shape
    factor = 2.0 ** rng.uniform(-octaves, 0, (rows, width // 32)) * (rng.random((rows, width // 32)) > 0.1)
    return MxMatrix.from_float(rng.standard_normal(shape) * np.repeat(factor, 32, axis=1))


@pytest.mark.parametrize("octaves", [0, 6, 12, 40, 300])
@pytest.mark.parametrize("rows", [1, 7, 300])
def test_prepared_weights_give_the_same_bits(octaves, rows):
    seed = 100 * rows + octaves
    rng = np.random.default_rng(seed)
    weights = MlpWeights(spread(rng, (96, 64), min(octaves, 6)), spread(rng, (96, 64), 1),
                         spread(rng, (64, 96), octaves))
    x = spread(rng, (rows, 64), octaves)
    got, expected = PreparedMlp(weights)(x), mlp(x, weights)
    assert np.array_equal(got.y, expected.y), f"seed {seed}"
    assert np.array_equal(got.hidden_codes.codes, expected.hidden_codes.codes), f"seed {seed}"
    assert np.array_equal(got.hidden_codes.scales, expected.hidden_codes.scales), f"seed {seed}"


def test_prepared_weights_with_nan_blocks():
    rng = np.random.default_rng(4)
    weights = MlpWeights(spread(rng, (96, 64), 2), spread(rng, (96, 64), 2), spread(rng, (64, 96), 2))
    x = spread(rng, (3, 64), 2)
    x.scales[1, 0], x.codes[1, :32] = SCALE_NAN, 0
    got, expected = PreparedMlp(weights)(x), mlp(x, weights)
    assert got.nan.tolist() == [False, True, False]
    assert np.array_equal(got.y, expected.y)
    weights.up.scales[5, 1], weights.up.codes[5, 32:] = SCALE_NAN, 0
    assert PreparedMlp(weights)(x).nan.all()


def test_quantised_weights_are_those_of_the_checkpoint():
    transformer = random_model()
    layers = quantised_weights(transformer)
    assert len(layers) == 2 and (layers[0].hidden, layers[0].intermediate) == (64, 128)
    expected = MxMatrix.from_float(transformer.blocks[1].mlp.down_proj.weight.numpy())
    assert np.array_equal(layers[1].down.codes, expected.codes)
