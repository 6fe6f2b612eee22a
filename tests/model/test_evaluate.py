"""Tests of model/evaluate.py."""

import json

import numpy as np
import pytest

from model import checkpoint, evaluate, world


def test_prompts_are_held_out_and_reproducible() -> None:
    prompts = evaluate.held_out_prompts(30, seed=4)
    assert all(world.held_out(world.parse(prompt)) for prompt in prompts)
    assert evaluate.held_out_prompts(12, seed=4) == prompts[:12]
    assert evaluate.held_out_prompts(12, seed=5) != prompts[:12]


def test_accuracy_counts_videos() -> None:
    prompts = [f"a {rest}" for rest in ("red circle moves left", "red circle moves right", "red square moves left",
                                        "blue circle moves left")]
    videos = [world.render(world.parse(prompts[0]), (10, 10), 10)] * 4
    result = evaluate.accuracy(videos, prompts, 2, 9)
    assert (result.ok, result.colour, result.shape, result.direction) == (0.25, 0.75, 0.75, 0.75)
    assert result.motion_kept == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(("frames", "expected"), [
    (2, [(0, 1)]), (8, [(0, 7)]), (20, [(0, 7), (8, 15)]), (64, [(8 * n, 8 * n + 7) for n in range(8)])])
def test_spans(frames: int, expected: list[tuple[int, int]]) -> None:
    assert evaluate.spans(frames) == expected


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main(["--videos", "2", "--frames", "2", "--json", "--threads", "1", "--temperature", "0.5"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["videos"], result["frames"], result["engine"]) == (2, 2, "float")
    assert result["sampling"]["temperature"] == 0.5
    assert 0 <= result["accuracy"][0]["ok"] <= 1


@pytest.mark.parametrize(("arguments", "message"), [
    (["--frames", "1"], "frames must be at least 2, not 1"),
    (["--videos", "0"], "videos must be at least 1, not 0"),
    (["--model", "nowhere"], "no model file nowhere"),
])
def test_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main(arguments) == 1
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_quality_bar() -> None:
    """The shipped model: 200 held-out prompts, at least 90 % fully right over 8 frames."""
    _, transformer, visual = checkpoint.load()
    result, = evaluate.evaluate(transformer, visual, evaluate.held_out_prompts(200), frames=8)
    assert result.ok >= 0.90, result
    assert np.isfinite(result.motion_kept)


@pytest.mark.slow
def test_long_videos_stay_right() -> None:
    """Over 64 frames, the last eight are right about as often as the first eight."""
    _, transformer, visual = checkpoint.load()
    results = evaluate.evaluate(transformer, visual, evaluate.held_out_prompts(60), frames=64)
    assert results[-1].ok >= results[0].ok - 0.05, results
