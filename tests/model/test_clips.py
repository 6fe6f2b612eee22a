"""Tests of model/clips.py."""

import numpy as np
import pytest
import torch

from model import world
from model.clips import ClipTable, corrupt, near_codes, sample_batch
from model.config import PRESETS
from model.frames import FrameLayout
from model.visual import VisualConfig, VisualTokenizer
from model.vocabulary import encode

LAYOUT = PRESETS["fastcar-64"].layout


@pytest.fixture(scope="module")
def visual() -> VisualTokenizer:
    torch.manual_seed(0)
    return VisualTokenizer(VisualConfig(codebook=64, code_dim=8, width=16)).eval()


@pytest.fixture(scope="module")
def table(visual: VisualTokenizer) -> ClipTable:
    return ClipTable(visual, LAYOUT)


def test_look_up_equals_encoding_the_video(visual: VisualTokenizer, table: ClipTable) -> None:
    seed = 21
    rng = np.random.default_rng(seed)
    scenes = [world.random_scene(rng) for _ in range(12)]
    starts = rng.integers(0, 32, (12, 2)) * 2
    codes = table.codes(scenes, starts, 5)
    for scene, start, clip in zip(scenes, starts, codes, strict=True):
        encoded = visual.encode(world.render(scene, tuple(start), 5)).numpy()
        assert np.array_equal(clip, encoded), f"seed {seed}: {scene.prompt()} from {start}"


def test_batches_keep_held_out_scenes_apart(table: ClipTable) -> None:
    held = {tuple(encode(scene.prompt(), LAYOUT.prelude)) for scene in world.all_scenes() if world.held_out(scene)}
    for held_out in (False, True):
        batch = sample_batch(table, np.random.default_rng(1), 64, 2, held_out=held_out, drop_share=0.0)
        assert batch.codes.shape == (64, 2 * LAYOUT.stride)
        assert {tuple(row) in held for row in batch.text_ids.tolist()} == {held_out}


def test_offsets_and_dropped_prompts(table: ClipTable) -> None:
    batch = sample_batch(table, np.random.default_rng(2), 400, 2, start_share=0.25, last_offset=9, drop_share=0.5)
    empty = (batch.text_ids == torch.tensor(encode(None, LAYOUT.prelude))).all(1)
    assert 0.4 < empty.float().mean() < 0.6
    assert 0.2 < (batch.frame_offset == 0).float().mean() < 0.3
    assert set(batch.frame_offset.tolist()) == set(range(10))


def test_videos_start_with_the_whole_object_in_view(visual: VisualTokenizer) -> None:
    table = ClipTable(visual, LAYOUT)
    seen = []
    codes = table.codes

    def spy(scenes: list[world.Scene], starts: np.ndarray, frames: int) -> np.ndarray:
        seen.append((scenes, starts))
        return codes(scenes, starts, frames)

    table.codes = spy
    batch = sample_batch(table, np.random.default_rng(6), 500, 2, start_share=0.5)
    (scenes, starts), = seen
    ends = starts + np.array([world.SIZES[scene.size] for scene in scenes])[:, None]
    first = batch.frame_offset.numpy() == 0
    assert not (starts % world.GRID).any()
    assert ends[first].max() == world.PICTURE and starts[first].min() == 0
    assert ends[~first].max() > world.PICTURE


def test_corruption_leaves_half_of_the_rows() -> None:
    codes = torch.randint(64, (400, 100), generator=torch.Generator().manual_seed(3))
    near = near_codes(torch.arange(64.0)[:, None], 2)
    changed = corrupt(codes, near, np.random.default_rng(4), most=0.5) != codes
    touched = changed.any(1).float().mean().item()
    assert 0.4 < touched < 0.55
    assert 0.08 < changed.float().mean().item() < 0.15
    assert torch.equal(corrupt(codes, near, np.random.default_rng(4), most=0.0), codes)


def test_near_codes_are_the_neighbours() -> None:
    assert near_codes(torch.tensor([[0.0], [1.0], [3.0], [10.0]]), 2).tolist() == [[1, 2], [0, 2], [1, 0], [2, 1]]


def test_layout_that_does_not_fit(visual: VisualTokenizer) -> None:
    with pytest.raises(ValueError, match="clips need 64 tokens a frame and no separators, not 256 and 1"):
        ClipTable(visual, FrameLayout(prelude=16, tokens_per_frame=256, frames=8, stride=257))
