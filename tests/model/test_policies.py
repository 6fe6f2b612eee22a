"""Gates beyond one threshold: oracle, TAS with change, ages, control, guidance, and the rule for boards."""

import numpy as np
import pytest
import torch

from model.change import change_replays
from model.config import PRESETS
from model.gates import (
    GATES,
    ChangeGate,
    ControlledGate,
    Rows,
    Step,
    TasGate,
    make_gate,
)
from model.gates.change import quantised
from model.generate import generate
from tests.model.small import PROMPTS, random_model

CONFIG = PRESETS["tiny"]
PAIR = Rows(seeds=(1,), guided=True)
OPTIONS = {"tas+change": {"tau": -0.2}, "controlled": {"target": 0.5}, "change-layers": {"weights": [1.0, 2.0]},
           "change-residual": {"sensitivities": [1.0, 1.0]}, "tas-heads": {"heads": np.array([[1, 0], [0, 1]], bool)}}


@pytest.mark.parametrize("name", [name for name in GATES if name != "dense"])
def test_every_gate_replays_some_and_never_in_frame_0(name):
    value = {"threshold": 0.9, "ratio": 0.5}[GATES[name].scale]
    gate = make_gate(name, -0.1 if name.startswith("tas") and name != "tas+change" else value,
                     transformer=random_model(), **OPTIONS.get(name, {}))
    statistics = generate(random_model(), PROMPTS[:2], [1, 2], gate=gate, frames=4).statistics
    assert statistics.per_frame()[0] == 0 and 0 < statistics.replay_ratio_eligible < 1
    if GATES[name].scale == "threshold" and name not in ("controlled", "tas-heads"):
        never = make_gate(name, GATES[name].never, transformer=random_model(), **OPTIONS.get(name, {}))
        assert generate(random_model(), PROMPTS[:2], [1, 2], gate=never, frames=3).statistics.replay_ratio == 0


def test_unknown_gate():
    with pytest.raises(ValueError, match="unknown gate 'best'; known: dense, tas"):
        make_gate("best", 0.5, transformer=random_model())


@pytest.mark.parametrize("relative", ["oracle", "oracle-residual"])
def test_the_oracle_replays_where_the_output_stays(relative):
    transformer = random_model()
    gate = make_gate(relative, 0.5, transformer=transformer)
    seen = {}

    def observe(item):
        true = transformer.blocks[item.layer].mlp(item.x)
        key = item.layer, item.step.index
        if item.step.eligible:
            replayed = ~item.result.computed
            change = (true - seen[key]).norm(dim=1)
            if relative == "oracle":
                assert torch.equal(replayed, change / true.norm(dim=1) <= 0.5)
            assert (item.result.y[replayed] == seen[key][replayed]).all()
        seen[key] = item.result.y.clone()

    generate(transformer, PROMPTS[:2], [1, 2], gate=gate, observer=observe, frames=3)


def test_a_value_is_replayed_at_most_max_age_times_and_refreshes_are_spread():
    gate = ChangeGate(np.inf, max_age=3)
    computed = []
    generate(random_model(), PROMPTS[:1], [1], gate=gate, frames=9,
             observer=lambda item: computed.append((item.layer, item.step, item.result.computed[0].item())))
    runs = {}
    per_frame = np.zeros(9)
    for layer, step, did in computed:
        key = layer, step.index
        runs[key] = 0 if did else runs[key] + 1
        assert runs[key] <= 3
        per_frame[step.frame] += did
    # One in four computes in the long run, and no frame has much more than another.
    assert per_frame[4:8].sum() == 32 and per_frame[4:8].max() <= 12


def decide(gate, x, layer=0, index=0, frame=1, scores=None):
    return gate.decide(layer, Step(number=16 * frame + index, frame=frame, index=index), x, scores)


def test_unconditional_rows_have_their_own_threshold():
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(1))
    gate = ChangeGate(0.2, unconditional=2.0)
    gate.begin(CONFIG, PAIR)
    gate.update(0, Step(number=0, frame=0, index=0), x, torch.ones(2, dtype=torch.bool))
    decision = decide(gate, x * 1.4)  # a change of 0.286 relative to the new input
    assert decision.compute.tolist() == [True, False]
    assert decision.rule.change_thresholds == (round(0.04 * 2**24), round(0.16 * 2**24))
    with pytest.raises(ValueError, match="unconditional must be positive, not 0"):
        ChangeGate(0.2, unconditional=0)


def test_the_rule_leads_a_board_to_the_same_rows():
    """Index bits of Rule, made from its parts alone, against Decision.compute, over a whole generation."""
    transformer = random_model()
    gates = [TasGate(-0.1, joint_pairs=True), ChangeGate(0.9, joint_pairs=True, max_age=2),
             make_gate("tas+change", 1.0, transformer=transformer, tau=-0.3)]
    for gate in gates:
        references, ages, both = {}, {}, set()

        def observe(item, references=references, ages=ages, both=both):
            rule, key, rows = item.decision.rule, (item.layer, item.step.index), len(item.x)
            codes = quantised(item.x)
            compute = np.ones(rows, bool)
            if item.step.eligible:
                compute[:] = False
                if rule.tas_scores is not None:
                    compute |= rule.tas_scores.sum(axis=1, dtype=np.int64) < rule.tas_threshold
                if rule.change_thresholds is not None:
                    held = type(codes)(*(np.stack([references[key, row][part] for row in range(rows)])
                                         for part in (0, 1)))
                    compute |= ~change_replays(codes, held, rule.change_thresholds)
                if rule.max_age:
                    compute |= np.array([ages[key, row] >= rule.max_age for row in range(rows)])
                if rule.groups:
                    bits = sum(1 << row for row in range(rows) if compute[row])
                    compute = np.array([bool(bits & group) for group in rule.groups])
                both.update(compute.tolist())
            assert np.array_equal(compute, item.result.computed.numpy())
            for row in range(rows):
                if compute[row]:
                    references[key, row] = codes.codes[row], codes.scales[row]
                    ages[key, row] = rule.fresh_age
                else:
                    ages[key, row] += 1

        generate(transformer, PROMPTS[:2], [1, 2], gate=gate, observer=observe, frames=5)
        assert both == {False, True}, gate.name


def test_the_controller_moves_within_its_bounds_towards_its_target():
    free = generate(random_model(), PROMPTS[:2], [1, 2], gate=ChangeGate(0.6), frames=12).statistics
    gate = ControlledGate(0.6, target=0.6, span=4.0, rate=1.5, gain=2.0)
    held = generate(random_model(), PROMPTS[:2], [1, 2], gate=gate, frames=12).statistics
    assert abs(np.mean(held.per_frame()[6:]) - 0.6) < min(0.1, abs(np.mean(free.per_frame()[6:]) - 0.6))
    assert held.per_frame()[1] == free.per_frame()[1], "it begins with the thresholds given"
    bounded = ControlledGate(0.6, target=0.99, span=1.1, rate=1.05)
    generate(random_model(), PROMPTS[:2], [1, 2], gate=bounded, frames=6)
    assert np.allclose(bounded._factor, 1.1)
    with pytest.raises(ValueError, match="signal must be one of ratio, budget, not 'speed'"):
        ControlledGate(0.6, target=0.5, signal="speed")
    with pytest.raises(ValueError, match="control needs thresholds above 0"):
        ControlledGate(-1.0, target=0.5)
