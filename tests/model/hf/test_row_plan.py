"""Which rows are evaluated is a matter of speed only."""

import numpy as np
import torch
from torch import nn

from model.hf.layer import run_needed_rows
from model.hf.row_plan import WORTH_MEASURING, evaluate_all


def mlp(hidden, inner, dtype=torch.float32, device=None):
    module = nn.Module()
    module.gate_proj = nn.Linear(hidden, inner, bias=False, dtype=dtype, device=device)
    return module


def test_small_few_and_foreign_products_are_gathered():
    assert evaluate_all(mlp(16, 32), 4) == (False,) * 5
    assert evaluate_all(mlp(16, 32), 2) == (False,) * 3
    assert evaluate_all(mlp(2048, WORTH_MEASURING // 2048, device="meta"), 4) == (False,) * 5
    bare = nn.Module()
    bare.gate_proj = nn.Identity()
    assert evaluate_all(bare, 8) == (False,) * 9


def test_large_products_are_measured_once():
    large = mlp(2048, WORTH_MEASURING // 2048)
    plan = evaluate_all(large, 3)
    assert len(plan) == 4 and plan[0] is False and plan[3] is False
    assert evaluate_all(mlp(2048, WORTH_MEASURING // 2048), 3) is plan


def test_both_ways_give_the_same():
    torch.manual_seed(0)
    layer = nn.Linear(8, 8)
    x, cached = torch.randn(4, 1, 8), torch.randn(4, 1, 8)
    compute = np.array([True, False, False, True])
    outcomes = [run_needed_rows(layer, x, cached, compute, full) for full in (False, True)]
    torch.testing.assert_close(*outcomes, atol=1e-6, rtol=0)
    assert torch.equal(outcomes[0][1:3], cached[1:3])
