"""Sampling: the distribution, limits of the inverse, guidance."""

import torch

from model.config import Sampling
from model.sampling import Uniforms, guide, sample


def test_shares_follow_the_softmax_of_the_top_k():
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0, 1.5]])
    count = 20000
    uniforms = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    codes = sample(logits.expand(count, -1), Sampling(temperature=0.7, top_k=3), uniforms)
    expected = torch.softmax(torch.tensor([-torch.inf, 2.0, 1.0, -torch.inf, 1.5]) / 0.7, dim=0)
    shares = torch.bincount(codes, minlength=5) / count
    torch.testing.assert_close(shares, expected, atol=2e-4, rtol=0)


def test_the_ends_of_the_unit_interval_draw_codes_with_a_chance():
    logits = torch.tensor([[-50.0, 1.0, 3.0, 2.0, -50.0]]).expand(2, -1)
    ends = torch.tensor([0.0, 1 - 2.0 ** -53], dtype=torch.float64)
    assert sample(logits, Sampling(top_k=3), ends).tolist() == [1, 3]


def test_temperature_zero_takes_the_largest():
    assert sample(torch.tensor([[1.0, 3.0, 2.0]]), Sampling(temperature=0), torch.zeros(1).double()).tolist() == [1]


def test_guidance():
    logits = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 1.0], [2.0, 6.0]])
    assert torch.equal(guide(logits, 2, 2.0), torch.tensor([[2.0, 3.0], [4.0, 2.0]]))
    assert torch.equal(guide(logits, 4, 2.0), logits)


def test_numbers_of_a_video_are_its_own():
    together, alone = Uniforms([5, 6], 8), Uniforms([6], 8)
    for _ in range(3):
        assert torch.equal(together.frame()[1], alone.frame()[0])
    assert not torch.equal(alone.frame(), alone.frame())
