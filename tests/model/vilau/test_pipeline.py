"""The object that callers use."""

import json

import torch

from model.gates import TasGate
from model.vilau.pipeline import Pipeline
from tests.model.vilau.folder import PROMPTS


def test_videos_are_decoded_as_they_come(folder):
    pipeline = Pipeline(folder)
    seen = []
    videos = pipeline.generate(PROMPTS, [1, 2], gate=TasGate(-torch.inf, variant="released"),
                               on_frame=lambda number, pixels: seen.append((number, pixels.clone())))
    assert [number for number, _ in seen] == [0, 1, 2]
    assert torch.equal(torch.stack([pixels for _, pixels in seen], dim=1), videos.pixels)
    assert torch.equal(pipeline.model.frames(videos.generation.codes), videos.pixels)
    summary = json.loads(json.dumps(videos.summary()))
    assert summary["tas_variant"] == "released" and summary["replay_ratio_eligible"] == 1 and summary["complete"]


def test_an_interrupt_before_the_first_frame_leaves_no_picture(folder):
    def stop(progress):
        raise KeyboardInterrupt

    videos = Pipeline(folder).generate(PROMPTS[:1], [1], on_step=stop)
    assert videos.pixels.shape == (1, 0, 3, 6, 6) and not videos.summary()["complete"]


def test_plan_counts_guidance_rows(folder):
    pipeline = Pipeline(folder, dtype=torch.bfloat16)
    assert pipeline.plan(PROMPTS).rows == 4 and pipeline.plan(PROMPTS, cfg_scale=1, frames=1).rows == 2
    assert pipeline.plan(PROMPTS, window=1).kv_bytes < pipeline.plan(PROMPTS).kv_bytes
