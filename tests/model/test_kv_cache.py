"""The cache of keys and values: sinks, a ring, the aligned key."""

import torch

from model.kv_cache import KvCache
from tests.model.small import SEPARATED


def numbered(step: int) -> torch.Tensor:
    """A key or value of two rows that says which step it is of."""
    return torch.full((2, SEPARATED.heads, 1, SEPARATED.head_dim), float(step))


def test_visible_are_the_prelude_and_the_last_window_of_steps():
    cache = KvCache(SEPARATED, rows=2)
    prelude = -1.0 - torch.arange(16.0).view(1, 1, 16, 1).expand(2, SEPARATED.heads, 16, SEPARATED.head_dim)
    cache.store_prelude(1, prelude, 2 * prelude)
    for step in range(3 * SEPARATED.window + 5):
        cache.store(1, step, numbered(step), 2 * numbered(step))
        keys, values = cache.visible(1, step)
        assert torch.equal(values, 2 * keys)
        expected = set(range(-16, 0)) | set(range(max(0, step - SEPARATED.window + 1), step + 1))
        assert {int(key) for key in keys[0, 0, :, 0]} == expected, f"step {step}"
        assert keys.shape[2] == len(expected)
        if step >= 18:
            assert torch.equal(cache.aligned_key(1, step), numbered(step - 18).squeeze(2)), f"step {step}"


def test_size_is_that_of_prelude_and_window():
    floats = 2 * SEPARATED.layers * 3 * SEPARATED.hidden * (16 + SEPARATED.window)
    assert KvCache(SEPARATED, rows=3).size_bytes == 4 * floats
