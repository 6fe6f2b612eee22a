"""Filters of residual codes, and who draws what."""

import pytest
import torch

from model.vilau.sampling import CodeSampling, RowDraws, SharedDraws, probabilities

SEED = 3


def slow(logits, sampling):
    """Definition, one row, in plain Python."""
    chances = torch.softmax(logits.double() / sampling.temperature, 0)
    order = sorted(range(len(logits)), key=lambda code: -logits[code])[:sampling.top_k]
    total, kept, before = sum(chances[code] for code in order), {}, 0.0
    for code in order:
        if before < sampling.top_p:
            kept[code] = chances[code] / total
        before += chances[code] / total
    return torch.tensor([kept.get(code, 0.0) / sum(kept.values()) for code in range(len(logits))])


@pytest.mark.parametrize("sampling", [
    CodeSampling(top_k=20, top_p=1), CodeSampling(top_k=5, top_p=1), CodeSampling(top_k=20, top_p=0.5),
    CodeSampling(temperature=0.5, top_k=8, top_p=0.9), CodeSampling(top_k=900, top_p=1e-9)])
def test_filters_are_their_definition(sampling):
    logits = 2 * torch.randn(4, 20, generator=torch.Generator().manual_seed(SEED))
    got = probabilities(logits, sampling)
    for row in range(4):
        torch.testing.assert_close(got[row].double(), slow(logits[row], sampling).double(), atol=1e-6, rtol=0)


def test_a_video_draws_the_same_beside_others():
    chances = torch.softmax(torch.randn(6, 3, 20, generator=torch.Generator().manual_seed(SEED)), 2)
    together, alone = RowDraws([7, 8, 9], 2), RowDraws([8], 2)
    for step in range(6):
        assert together.codes(chances[step])[1] == alone.codes(chances[step, 1:2])[0]
        if step % 2:
            together.end_token()
            alone.end_token()


def test_shared_stream_discards_one_text_draw_a_token():
    chances, text = torch.full((2, 20), 0.05), torch.softmax(torch.randn(4, 7), 1)
    torch.manual_seed(SEED)
    expected = []
    for _ in range(3):
        expected.append(torch.multinomial(chances, 1).squeeze(1))
        torch.multinomial(text, 1)
    draws = SharedDraws(SEED, 4, 7)
    for codes in expected:
        assert torch.equal(draws.codes(chances), codes)
        draws.end_token()


@pytest.mark.parametrize("fields, message", [
    ({"cfg_scale": -1}, "cfg_scale must be at least 0, not -1"),
    ({"temperature": float("nan")}, "temperature must be at least 0, not nan"),
    ({"top_k": 0}, "top_k must be at least 1, not 0"),
    ({"top_p": 0}, "top_p must be above 0 and at most 1, not 0"),
    ({"top_p": 1.5}, "top_p must be above 0 and at most 1, not 1.5")])
def test_settings_are_checked(fields, message):
    with pytest.raises(ValueError, match=message):
        CodeSampling(**fields)
