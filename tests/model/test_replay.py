"""The ring and the float engine: skipping is real, replays chain, the extremes are exact."""

import math

import pytest
import torch

from model.gates import ChangeGate, Decision, RandomGate, TasGate
from model.generate import generate
from model.replay import FloatMlp
from tests.model.small import PROMPTS, random_model

ALL = torch.ones(2, dtype=torch.bool)


def mask(*compute: int) -> Decision:
    return Decision(eligible=True, compute=torch.tensor(compute, dtype=torch.bool))


@pytest.mark.parametrize("gate", [TasGate(math.inf), ChangeGate(-1.0), RandomGate(0.0)], ids=lambda gate: gate.name)
def test_a_gate_that_never_replays_is_dense_bit_for_bit(gate):
    transformer = random_model()
    outputs: dict[str, list] = {"dense": [], "gated": []}
    results = [generate(transformer, PROMPTS[:2], [1, 2], gate=used,
                        observer=lambda item, kept=kept: kept.append(item.result.y.clone()))
               for used, kept in ((None, outputs["dense"]), (gate, outputs["gated"]))]
    assert torch.equal(results[0].codes, results[1].codes)
    assert torch.equal(torch.stack(outputs["dense"]), torch.stack(outputs["gated"]))


def test_minus_infinity_replays_everything_after_frame_0():
    transformer = random_model()
    engine = FloatMlp(transformer)
    result = generate(transformer, PROMPTS[:2], [1, 2], gate=TasGate(-math.inf), engine=engine)
    assert result.statistics.replay_ratio_eligible == 1
    assert result.statistics.replay_ratio == pytest.approx(47 / 63)  # 16 of the 63 steps fed are frame 0
    assert engine.calls == 2 * 16 and engine.rows_computed == 2 * 16 * 4


def test_replayed_rows_do_not_run_the_mlp():
    transformer = random_model()
    ran = []
    for block in transformer.blocks:
        block.mlp.register_forward_hook(lambda module, args, output: ran.append(len(args[0])))
    result = generate(transformer, PROMPTS[:2], [1, 2], gate=RandomGate(0.7))
    prefill = ran[:2]
    assert prefill == [4 * 16] * 2
    summary = result.statistics.summary()
    assert sum(ran[2:]) == summary["row_steps"] - summary["row_steps_replayed"]
    assert len(ran[2:]) == summary["mlp_calls"]
    assert summary["mlp_calls"] + summary["mlp_skips"] == 2 * 63
    assert summary["mlp_skips"] > 0


def test_replays_chain_and_only_their_own_row():
    transformer = random_model()
    engine = FloatMlp(transformer)
    engine.begin(2, transformer.config.layout)
    inputs = torch.randn(4, 2, 64, generator=torch.Generator().manual_seed(1))
    first = engine.step(0, 3, inputs[0], mask(1, 1)).y.clone()
    torch.testing.assert_close(first, transformer.blocks[0].mlp(inputs[0]))
    second = engine.step(0, 3, inputs[1], mask(0, 1))
    assert second.computed.tolist() == [False, True]
    assert torch.equal(second.y[0], first[0])
    torch.testing.assert_close(second.y[1], transformer.blocks[0].mlp(inputs[1])[1])
    kept = second.y.clone()
    assert torch.equal(engine.step(0, 3, inputs[2], mask(0, 0)).y, kept)
    # Another index and another layer have their own values.
    assert torch.equal(engine.step(0, 4, inputs[3], mask(0, 0)).y, torch.zeros(2, 64))
    assert torch.equal(engine.step(1, 3, inputs[3], mask(0, 0)).y, torch.zeros(2, 64))


def test_ineligible_computes_whatever_the_mask_says():
    transformer = random_model()
    engine = FloatMlp(transformer)
    engine.begin(2, transformer.config.layout)
    decision = Decision(eligible=False, compute=~ALL)
    assert engine.step(0, 0, torch.ones(2, 64), decision).computed.all()


def test_engine_misuse_is_told():
    engine = FloatMlp(random_model())
    with pytest.raises(RuntimeError, match="step before begin"):
        engine.step(0, 0, torch.ones(2, 64), mask(1, 1))
    engine.begin(2, random_model().config.layout)
    with pytest.raises(ValueError, match=r"MLP inputs must be \[2, 64\] in this generation, not \[3, 64\]"):
        engine.step(0, 0, torch.ones(3, 64), mask(1, 1))
