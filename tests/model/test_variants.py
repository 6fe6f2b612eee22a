"""Definitions of the temporal attention score in the project's own decoder, from projections alone."""

import math

import pytest
import torch

from model.gates import VARIANTS, ChangeGate, Rows, Step, TasGate
from model.generate import generate
from model.replay import FloatMlp
from model.transformer import Transformer, apply_rope, rope_tables
from tests.model.small import PROMPTS, random_model


@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_are_their_definition(variant):
    transformer: Transformer = random_model()
    config, layout = transformer.config, transformer.config.layout
    queries, keys, seen = [], [], []
    attention = transformer.blocks[1].attention
    attention.q_proj.register_forward_hook(lambda module, inputs, out: queries.append(out))
    attention.k_proj.register_forward_hook(lambda module, inputs, out: keys.append(out))
    generate(transformer, PROMPTS[:2], [1, 2], frames=2, gate=TasGate(math.inf, variant=variant), engine=FloatMlp(
        transformer), observer=lambda item: item.layer == 1 and item.scores is not None and seen.append(item.scores))
    # The first call is the prelude; step v is call v + 1.
    queries, keys = ([out.squeeze(1).unflatten(-1, (config.heads, -1)) for out in calls[1:]]
                     for calls in (queries, keys))
    assert len(seen) == layout.tokens_per_frame - 1
    for place, scores in enumerate(seen):
        number = layout.stride + place
        now, before = (rope_tables(torch.tensor([layout.position(step)]), config) for step in (number, place))
        query, key = queries[number], apply_rope(keys[place], before)
        if variant != "released":
            query = apply_rope(query, now)
        expected = (query * key).sum(-1) / math.sqrt(config.head_dim)
        if variant == "cosine":
            expected = (query * key).sum(-1) / query.norm(dim=-1) / key.norm(dim=-1)
        torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)


def test_released_compares_strictly_and_in_the_precision_of_the_scores():
    gate = TasGate(1.0, variant="released")
    config = random_model().config
    gate.begin(config, Rows(seeds=(1,), guided=False))
    step = Step.at(config.layout.stride, config.layout)
    x = torch.zeros(1, config.hidden)
    assert gate.decide(0, step, x, torch.ones(1, 2)).compute.tolist() == [True]
    assert gate.decide(0, step, x, torch.full((1, 2), 1.0001)).compute.tolist() == [False]
    near = TasGate(0.9999, variant="released")
    near.begin(config, Rows(seeds=(1,), guided=False))
    assert near.decide(0, step, x, torch.ones(1, 2)).compute.tolist() == [False]
    assert near.decide(0, step, x, torch.ones(1, 2, dtype=torch.bfloat16)).compute.tolist() == [True]


def test_thresholds_of_another_variant_are_refused():
    with pytest.raises(ValueError, match="calibrated for 'released', not for 'paper'; calibrate again, or set"):
        TasGate(-4.0, thresholds_for="released")
    assert TasGate(-4.0, variant="released", thresholds_for="released").variant == "released"


def test_statistics_say_which_variant_decided():
    for gate, variant in ((TasGate(0.0, variant="cosine"), "cosine"), (TasGate(0.0), "paper"), (ChangeGate(0.5), None)):
        done = generate(random_model(), PROMPTS[:1], [1], frames=2, gate=gate)
        assert done.statistics.summary()["tas_variant"] == variant


def test_unknown_variant():
    with pytest.raises(ValueError, match="variant must be one of paper, released, cosine, not 'other'"):
        TasGate(0.0, variant="other")
