"""A stride that is not the model's is caught, and a right one never is."""

import re

import numpy as np
import pytest
import torch

from model.hf import FrameLayoutError, ReplayConfig, disable_replay, enable_replay
from model.hf.layout_check import LayoutCheck
from tests.model.hf.tiny import SEPARATOR, cache_name, feed, make, tokens


def watch(config, ids):
    """Feed visual tokens ``ids`` ``[rows, steps]``; the step at which the check speaks, or None."""
    check = LayoutCheck(config)
    for step, keys in enumerate(ids.T.tolist()):
        try:
            check.feed(step, keys)
        except FrameLayoutError:
            return step
    return None


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("true", [17, 129, 257, 347])
def test_tokens_per_frame_in_place_of_the_stride_is_caught(true, rows):
    given = true - 1 if true != 347 else 342  # several separators
    ids = tokens(rows, 1, 4, given, true - given, seed=true)[:, 1:]
    if true - given > 1:
        ids[(ids == SEPARATOR) | (ids == SEPARATOR - 1)] = 5
        ids[:, given::true] = SEPARATOR - 1  # only the first of them is a marker
    wrong = ReplayConfig(thresholds=0.0, tokens_per_frame=given, stride=given)
    assert watch(wrong, ids) == (2 * true + given if true - given > 1 else 3 * true - 1)
    declared = ReplayConfig(thresholds=0.0, tokens_per_frame=given, stride=true)
    assert watch(declared, ids) is None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["noise", "still", "drift"])
def test_a_right_stride_without_separators_passes(seed, kind):
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 500, (2, 6, 16))
    if kind == "still":
        frames[:] = frames[:, :1]
    if kind == "drift":
        frames = np.where(rng.random(frames.shape) < 0.8, frames[:, :1], frames)
    ids = frames.reshape(2, -1)
    right = ReplayConfig(thresholds=0.0, tokens_per_frame=16, stride=16)
    assert watch(right, ids) is None, f"seed {seed}"


def test_a_marker_at_the_beginning_of_frames_is_caught_earlier():
    ids = tokens(1, 1, 4, 16)[:, 16 + 1:]  # begins with a separator
    assert watch(ReplayConfig(thresholds=0.0, tokens_per_frame=16, stride=16), ids) == 2 * 17


@pytest.mark.parametrize("separators,step", [((SEPARATOR,), 15), (None, 31)])
def test_a_stride_that_is_too_long_by_a_phase_is_caught(separators, step):
    ids = tokens(1, 1, 4, 15)[:, 1:]  # true stride 16
    wrong = ReplayConfig(thresholds=0.0, tokens_per_frame=16, stride=17, separator_ids=separators)
    assert watch(wrong, ids) in (step, 33)


def test_declared_separators_are_checked_at_once_and_none_means_silence():
    ids = tokens(2, 1, 3, 16)[:, 1:]
    late = ids[:, 1:]  # as if the prelude were one position longer
    good = ReplayConfig(thresholds=0.0, tokens_per_frame=16, stride=17, separator_ids=(SEPARATOR,))
    assert watch(good, ids) is None
    assert watch(good, late) == 15
    silent = ReplayConfig(thresholds=0.0, tokens_per_frame=16, stride=16, separator_ids=())
    assert watch(silent, ids) is None


@pytest.mark.parametrize("embedded", [False, True])
def test_a_model_stops_at_the_contradiction(embedded):
    model, ids = make(), tokens(2, 6, 4, 4)
    enable_replay(model, ReplayConfig(thresholds=0.0, tokens_per_frame=4, stride=4))
    with pytest.raises(FrameLayoutError, match=re.escape(
            "the token at step 14 recurs exactly every 5 steps and nowhere else, as a separator does, but the stride "
            "is 4: tokens per frame given in its place? Set stride (and separator_ids), or separator_ids=() if there "
            "are no separators")):
        _feed(model, ids, embedded)
    disable_replay(model)
    enable_replay(model, ReplayConfig(thresholds=0.0, tokens_per_frame=4, stride=5, separator_ids=(SEPARATOR,)))
    _feed(model, ids, embedded)


@pytest.mark.parametrize("embedded", [False, True])
def test_a_wrong_prelude_is_caught_by_the_first_separator(embedded):
    model, ids = make(), tokens(2, 6, 4, 4)
    enable_replay(model, ReplayConfig(thresholds=0.0, tokens_per_frame=4, stride=5, separator_ids=(SEPARATOR,),
                                      prelude=7))
    with pytest.raises(FrameLayoutError, match="^with stride 5 and 4 tokens per frame the token of frame 0, index 3 "
                       "should be a visual token, and is a separator; correct stride, separator_ids or prelude"):
        _feed(model, ids, embedded)


def test_a_prelude_with_another_stride_is_left_alone():
    """An image of other size before frame 0: the layout begins behind it."""
    model = make()
    image, video = tokens(1, 6, 1, 9), tokens(1, 6, 3, 4, seed=1)[:, 6:]
    ids = torch.cat([image, video], dim=1)
    enable_replay(model, ReplayConfig(thresholds=float("-inf"), tokens_per_frame=4, stride=5,
                                      separator_ids=(SEPARATOR,), prelude=image.shape[1]))
    feed(model, ids, 6)


def _feed(model, ids, embedded):
    if not embedded:
        return feed(model, ids, 6)
    vectors = model.get_input_embeddings()(ids).detach()
    with torch.no_grad():
        output = model(inputs_embeds=vectors[:, :6], use_cache=True)
        for at in range(6, ids.shape[1]):
            output = model(inputs_embeds=vectors[:, at:at + 1], use_cache=True,
                           **{cache_name(model): output[cache_name(model)]})
