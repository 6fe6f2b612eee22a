"""Gates: decisions against the naive definition, fixed-point rounding, pairs, errors."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from model import vocabulary
from model.config import PRESETS
from model.gates import (
    ChangeGate,
    DenseGate,
    FloatChangeGate,
    RandomGate,
    Rows,
    Step,
    TasGate,
    tas_fixed,
    tas_replays,
    tas_threshold,
)
from model.generate import Decoder, generate
from model.replay import FloatMlp
from tests.model.naive_replay import naive_rollout
from tests.model.small import PROMPTS, SEPARATED, random_model


@pytest.mark.parametrize("config", [PRESETS["tiny"], SEPARATED], ids=["tiny", "separators"])
@pytest.mark.parametrize("name, gate", [("tas", TasGate), ("change", FloatChangeGate)])
def test_gate_decides_as_the_definition_with_full_history(config, name, gate):
    transformer = random_model(config)
    layout = config.layout
    steps, threshold = 4 * layout.stride + 5, {"tas": 0.1, "change": 0.9}[name]
    codes = torch.randint(config.codebook, (2, steps), generator=torch.Generator().manual_seed(7))
    text_ids = torch.tensor([vocabulary.encode(text, layout.prelude) for text in (PROMPTS[0], None)])
    seen: dict[tuple[int, int], tuple] = {}

    def observe(item):
        key = (item.layer, item.step.number)
        seen[key] = (item.result.computed, item.x, None if item.scores is None else item.scores.mean(1),
                     item.result.y.clone())

    decoder = Decoder(transformer, Rows(seeds=(0,), guided=True), gate(threshold), FloatMlp(transformer),
                      observer=observe)
    decoder.prefill(text_ids)
    logits = torch.stack([decoder.step(number, codes[:, number]) for number in range(steps)], dim=1)
    replayed = 0
    for row in range(2):
        histories, expected = naive_rollout(transformer, text_ids[row], codes[row], name, threshold)
        for layer, history in enumerate(histories):
            assert all(history.computed[:layout.stride])
            for number in range(steps):
                computed, x, scores, y = seen[layer, number]
                where = f"layer {layer} step {number} row {row}"
                assert bool(computed[row]) == history.computed[number], where
                torch.testing.assert_close(x[row], history.inputs[number], atol=1e-4, rtol=1e-3, msg=where)
                torch.testing.assert_close(y[row], history.outputs[number], atol=1e-4, rtol=1e-3, msg=where)
                if number >= layout.stride:
                    assert float(scores[row]) == pytest.approx(history.scores[number - layout.stride], abs=1e-4), where
            replayed += len(history.computed) - sum(history.computed)
        torch.testing.assert_close(logits[row], expected[1:], atol=1e-4, rtol=1e-3)
    possible = 2 * config.layers * (steps - layout.stride)
    assert 0.1 < replayed / possible < 0.9, "the threshold must leave both outcomes"
    assert decoder.statistics.replay_ratio_eligible == replayed / possible


def test_thresholds_per_layer():
    transformer = random_model()
    result = generate(transformer, PROMPTS[:2], [1, 2], gate=TasGate([-math.inf, math.inf]))
    assert result.statistics.per_layer() == [1.0, 0.0]
    with pytest.raises(ValueError, match="3 thresholds for 2 layers; give one, or one per layer"):
        generate(transformer, PROMPTS[:1], [1], gate=TasGate([1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match="a threshold must be a number, or one number per layer, not nan"):
        ChangeGate(math.nan)


@pytest.mark.parametrize("gate", [TasGate, ChangeGate])
def test_a_joint_pair_replays_only_if_both_rows_would(gate):
    """From a step on which both gates have the same past, the joint mask is the conjunction of the single ones."""
    rows, config = Rows(seeds=(1, 2, 3), guided=True), PRESETS["tiny"]
    threshold = {TasGate: 0.0, ChangeGate: 1.3}[gate]
    single, joint = gate(threshold), gate(threshold, joint_pairs=True)
    generator = torch.Generator().manual_seed(3)
    mixed = 0
    for item in (single, joint):
        item.begin(config, rows)
    for index in range(16):
        first, second = torch.randn(2, 6, 64, generator=generator)
        scores = torch.randn(6, 2, generator=generator)
        for item in (single, joint):
            item.update(0, Step(number=index, frame=0, index=index), first, torch.ones(6, dtype=torch.bool))
        step = Step(number=16 + index, frame=1, index=index)
        alone = ~single.decide(0, step, second, scores).compute
        pair = ~joint.decide(0, step, second, scores).compute
        assert torch.equal(pair, (alone[:3] & alone[3:]).repeat(2))
        mixed += int((alone[:3] != alone[3:]).sum())
    assert mixed > 0


def test_first_frame_never_replays():
    for gate in (TasGate(-math.inf), ChangeGate(math.inf), RandomGate(1.0), DenseGate()):
        result = generate(random_model(), PROMPTS[:1], [1], gate=gate)
        assert result.statistics.per_frame()[0] == 0
        assert result.statistics.replay_ratio_eligible == (0 if gate.name == "dense" else 1)


def test_random_gate_reaches_its_ratio_and_depends_on_its_seed():
    transformer = random_model()
    first, again, other = (generate(transformer, PROMPTS, [1, 2, 3, 4], gate=RandomGate(0.3, seed), frames=8).statistics
                           for seed in (0, 0, 1))
    draws = first.summary()["row_steps_eligible"]
    assert abs(first.replay_ratio_eligible - 0.3) < 5 * (0.3 * 0.7 / draws) ** 0.5
    assert np.array_equal(first.replayed, again.replayed)
    assert not np.array_equal(first.replayed, other.replayed)
    with pytest.raises(ValueError, match=r"ratio must be in 0..1, not 1.5"):
        RandomGate(1.5)


def test_fixed_scores_round_to_even_and_saturate():
    lsb = 2.0 ** -16
    values = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 3.0, 0.50001]) * lsb
    assert tas_fixed(values).tolist() == [0, 2, 2, 0, -2, 3, 1]
    assert tas_fixed(np.array([1e9, -1e9, np.inf, -np.inf, np.nan])).tolist() == [
        2**31 - 1, -2**31, 2**31 - 1, -2**31, -2**31]
    assert tas_fixed(np.zeros((2, 3), dtype=np.float32)).dtype == np.int32


def test_fixed_threshold():
    assert tas_threshold(1.25, 4) == 5 << 16
    assert tas_threshold(2.0 ** -18, 2) == 0  # half an LSB, to even
    assert tas_threshold(3 * 2.0 ** -18, 2) == 2
    assert tas_threshold(math.inf, 4) == 2**63 - 1 == tas_threshold(1e300, 4)
    assert tas_threshold(-math.inf, 4) == -2**63 == tas_threshold(-1e300, 4)
    with pytest.raises(ValueError, match="the threshold is NaN"):
        tas_threshold(math.nan, 4)


def test_fixed_comparison_against_fractions():
    seed = 20
    rng = np.random.default_rng(seed)
    scores = np.concatenate([rng.normal(0, 3, (200, 6)), np.full((2, 6), 0.25), rng.normal(0, 3e4, (50, 6))])
    for threshold in (0.25, -1.0, 0.1, 2.5):
        limit = Fraction(round(Fraction(6) * Fraction(threshold) * 65536), 65536)
        expected = [sum(min(max(Fraction(round(Fraction(s) * 65536), 65536), -2**15), 2**15 - Fraction(1, 65536))
                        for s in row.tolist()) >= limit for row in scores]
        got = tas_replays(scores, threshold)
        assert got.tolist() == expected, f"seed {seed}, threshold {threshold}"
    assert tas_replays(np.full((1, 6), 0.25), 0.25).all(), "equal replays"
