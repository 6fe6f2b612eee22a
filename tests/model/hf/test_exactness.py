"""Replay equals the plain definition on every family, and really skips."""

import numpy as np
import pytest
import torch
from transformers import DynamicCache, StaticCache

from model.hf import ReplayConfig, disable_replay, enable_replay, replay_statistics
from tests.model.hf.slow_replay import slow_replay
from tests.model.hf.tiny import FAMILIES, SEPARATOR, MlpOutputs, feed, make, tokens

PRELUDE, FRAMES, PER_FRAME, STRIDE = 6, 4, 4, 5


def config(**changes):
    return ReplayConfig(**{"thresholds": 0.2, "tokens_per_frame": PER_FRAME, "stride": STRIDE,
                           "separator_ids": (SEPARATOR,), **changes})


def replaying(model, settings, ids, **kwargs):
    """Logits, replayed rows, and statistics of one run under replay."""
    enable_replay(model, settings)
    recorder = MlpOutputs(model)
    logits = feed(model, ids, PRELUDE, **kwargs)
    statistics = replay_statistics(model)
    recorder.close()
    disable_replay(model)
    return logits, recorder.replayed(settings.stride), statistics, recorder.evaluations


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("variant,tau,limit", [("paper", 0.2, None), ("paper", -0.5, 1), ("cosine", 0.02, None)])
def test_equals_the_plain_definition(family, attention, variant, tau, limit):
    model = make(family, attention)
    ids = tokens(3, PRELUDE, FRAMES, PER_FRAME)
    wanted, masks = slow_replay(model, ids, PRELUDE, STRIDE, tau, variant == "cosine", limit)
    got, replayed, statistics, _ = replaying(model, config(variant=variant, thresholds=tau, max_consecutive=limit), ids)
    assert 0.1 < masks.mean() < 0.7, "the threshold does not test anything"
    np.testing.assert_array_equal(replayed, masks)
    torch.testing.assert_close(got, wanted, atol=2e-4, rtol=0)
    per_layer = masks[:, STRIDE:].mean(axis=(1, 2))
    np.testing.assert_allclose(statistics.ratio(axes=(0, 2)), per_layer)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_never_is_dense_bit_for_bit_and_disabling_restores(family, attention):
    model, ids = make(family, attention), tokens(2, PRELUDE, FRAMES, PER_FRAME)
    dense = feed(model, ids, PRELUDE)
    never, replayed, _, evaluations = replaying(model, config(thresholds=float("inf")), ids)
    assert torch.equal(dense, never) and not replayed.any()
    assert evaluations == 3 * FRAMES * STRIDE
    changed, replayed, _, _ = replaying(model, config(), ids)
    assert replayed.any() and not torch.equal(dense, changed)
    assert torch.equal(dense, feed(model, ids, PRELUDE))
    assert model.config._attn_implementation == attention


def test_always_computes_only_the_first_frame():
    model, ids = make(), tokens(2, PRELUDE, FRAMES, PER_FRAME)
    _, replayed, statistics, evaluations = replaying(model, config(thresholds=float("-inf")), ids)
    assert replayed[:, STRIDE:].all() and not replayed[:, :STRIDE].any()
    assert evaluations == statistics.mlp_calls == 3 * STRIDE
    assert statistics.mlp_skips == 3 * STRIDE * (FRAMES - 1)
    assert float(statistics.ratio()) == 1 and float(statistics.ratio("row_steps")) == 1 - 1 / FRAMES
    assert [int(frame.age_max.max()) for frame in statistics.frames] == [0, 1, 2, 3]


def test_calls_drop_by_the_number_that_is_counted():
    model, ids = make(), tokens(1, PRELUDE, FRAMES, PER_FRAME)
    _, replayed, statistics, evaluations = replaying(model, config(), ids)
    assert evaluations == statistics.mlp_calls == (~replayed.all(axis=2)).sum() < 3 * FRAMES * STRIDE
    assert statistics.rows_computed == (~replayed).sum()


def test_rows_are_the_same_alone_and_together():
    model, ids = make(), tokens(4, PRELUDE, FRAMES, PER_FRAME)
    together, replayed, _, _ = replaying(model, config(), ids)
    for row in range(4):
        alone, mine, _, _ = replaying(model, config(), ids[row:row + 1])
        np.testing.assert_array_equal(mine[:, :, 0], replayed[:, :, row])
        torch.testing.assert_close(alone[:, 0], together[:, row], atol=1e-4, rtol=0)


def test_groups_replay_only_together():
    # One layer: its scores depend on the tokens alone, so that decisions of groups follow from those of rows.
    model, ids = make(num_hidden_layers=1), tokens(4, PRELUDE, FRAMES, PER_FRAME)
    _, rows, _, _ = replaying(model, config(thresholds=-0.5), ids)
    _, pairs, statistics, _ = replaying(model, config(thresholds=-0.5, groups="pairs", guided=True), ids)
    _, batch, _, _ = replaying(model, config(thresholds=-0.5, groups="batch"), ids)
    joint = rows[..., :2] & rows[..., 2:]
    np.testing.assert_array_equal(pairs, np.concatenate([joint, joint], axis=2))
    np.testing.assert_array_equal(batch, np.broadcast_to(rows.all(axis=2, keepdims=True), rows.shape))
    assert pairs.any() and batch.any() and not np.array_equal(pairs, batch)
    np.testing.assert_array_equal(*statistics.total("replayed", (0, 1)))


def test_excluded_layers_and_warm_up_stay_dense():
    model, ids = make(), tokens(2, PRELUDE, FRAMES, PER_FRAME)
    _, replayed, statistics, _ = replaying(model, config(thresholds=(float("-inf"),) * 3, exclude_layers=(1,),
                                                         warmup_frames=2), ids)
    assert not replayed[1].any() and not replayed[:, :2 * STRIDE].any() and replayed[0::2, 2 * STRIDE:].all()
    assert statistics.layers == (0, 2)


def test_change_gate_compares_with_the_input_of_the_cached_value():
    model = make(num_hidden_layers=1)
    ids = tokens(2, PRELUDE, 5, PER_FRAME, seed=3)
    inputs = []
    handle = model.model.layers[0].mlp.register_forward_pre_hook(
        lambda module, args: inputs.append(args[0][:, 0].clone()) if args[0].shape[1] == 1 else None)
    theta = 1.2
    _, replayed, statistics, _ = replaying(model, config(variant="change", thresholds=theta), ids)
    handle.remove()
    reference, wanted = {}, np.zeros_like(replayed)
    for step, x in enumerate(inputs):
        for row in range(2):
            place = step % STRIDE, row
            if step >= STRIDE:
                wanted[0, step, row] = (x[row] - reference[place]).norm() / x[row].norm() <= theta
            if not wanted[0, step, row]:
                reference[place] = x[row]
    np.testing.assert_array_equal(replayed, wanted)
    assert 0.1 < wanted[:, STRIDE:].mean() < 1
    assert statistics.peak_memory_bytes == 2 * STRIDE * 2 * 32 * 4


@pytest.mark.parametrize("family", ["mistral", "qwen3"])
@pytest.mark.parametrize("window", [4, 8])
def test_a_window_that_forgets_the_predecessor_keeps_its_keys_apart(family, window):
    extra = {"use_sliding_window": True, "max_window_layers": 0} if family == "qwen3" else {}
    model = make(family, sliding_window=window, num_hidden_layers=1, **extra)
    # In one layer scores do not depend on what attention reads, so that a full cache gives the same decisions.
    full = make(family, num_hidden_layers=1, sliding_window=None)
    full.load_state_dict(model.state_dict())
    ids = tokens(2, PRELUDE, FRAMES, PER_FRAME)
    _, wanted, _, _ = replaying(full, config(), ids)
    _, replayed, statistics, _ = replaying(model, config(), ids, cache=DynamicCache(config=model.config))
    np.testing.assert_array_equal(replayed, wanted)
    assert wanted.any()
    keys = STRIDE * 2 * 2 * 8 * 4 if window <= STRIDE else 0
    assert statistics.peak_memory_bytes == STRIDE * 2 * 32 * 4 + keys


def test_static_cache():
    model, ids = make(), tokens(2, PRELUDE, FRAMES, PER_FRAME)
    wanted, masks, _, _ = replaying(model, config(), ids)
    static = StaticCache(config=model.config, max_cache_len=64)
    got, replayed, _, _ = replaying(model, config(), ids, cache=static)
    np.testing.assert_array_equal(replayed, masks)
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=0)


def test_half_precision_keeps_its_type():
    model, ids = make().to(torch.bfloat16), tokens(2, PRELUDE, FRAMES, PER_FRAME)
    got, replayed, statistics, _ = replaying(model, config(), ids)
    assert got.dtype == torch.bfloat16 and replayed.any()
    assert statistics.peak_memory_bytes == 3 * STRIDE * 2 * 32 * 2
