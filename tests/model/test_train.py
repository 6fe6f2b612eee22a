"""Tests of the training loops and of ``python -m model.train``."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from model import checkpoint, train, train_transformer, train_visual
from model.clips import Batch
from model.config import PRESETS, ModelConfig
from model.train_transformer import TransformerTraining
from model.train_visual import MovingCodebook, VisualTraining
from model.transformer import Transformer
from model.visual import VisualConfig, VisualTokenizer

SMALL_VISUAL = VisualConfig(codebook=32, code_dim=8, width=16)


def small_model() -> ModelConfig:
    layout = PRESETS["fastcar-64"].layout
    return ModelConfig(hidden=32, intermediate=32, layers=1, heads=1, codebook=32, window=128, layout=layout)


def test_first_frame_counts_at_the_start_of_a_video_only() -> None:
    batch = Batch(text_ids=torch.zeros(2, 1), codes=torch.zeros(2, 6), frame_offset=torch.tensor([0, 5]))
    assert train_transformer.loss_mask(batch, 2).tolist() == [[True] * 6, [False] * 2 + [True] * 4]


def test_every_parameter_has_one_optimizer() -> None:
    transformer = Transformer(PRESETS["tiny"])
    groups = [p for optim in train_transformer.optimizers(transformer, TransformerTraining())
              for group in optim.param_groups for p in group["params"]]
    assert sorted(map(id, groups)) == sorted(map(id, transformer.parameters()))


def test_transformer_learns_and_resumes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    visual = VisualTokenizer(SMALL_VISUAL).eval().requires_grad_(False)
    seen: list[dict[str, float]] = []
    settings = TransformerTraining(minutes=0.05, batch=2, frames=2, first_frames=1, report_every=3, warmup_steps=1)
    state = tmp_path / "state.pt"
    train_transformer.train(small_model(), visual, settings, lambda _, measures: seen.append(measures), state)
    assert seen[-1]["seconds"] >= 3
    assert seen[-1]["val_loss"] < seen[0]["val_loss"]
    count = len(seen)
    longer = TransformerTraining(minutes=0.06, batch=2, frames=2, first_frames=1, report_every=3, warmup_steps=1)
    train_transformer.train(small_model(), visual, longer, lambda _, measures: seen.append(measures), state)
    assert seen[count]["step"] > seen[count - 1]["step"]
    assert seen[count]["seconds"] > seen[count - 1]["seconds"]


def test_stills_are_all_the_pictures() -> None:
    stills = train_visual.stills()
    assert stills.shape == (25 * 9 * 16, train_visual.CROP, train_visual.CROP, 3)


def test_codes_follow_their_latents() -> None:
    tokenizer = VisualTokenizer(VisualConfig(codebook=2, code_dim=1, width=4))
    tokenizer.codebook.requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    latents = torch.tensor([[0.0], [1.0]])
    book = MovingCodebook(tokenizer, latents, decay=0.5, generator=generator)
    moved = torch.tensor([[0.2], [1.4], [1.6]])
    for _ in range(40):
        book.update(moved, tokenizer.nearest(moved))
    assert sorted(tokenizer.codebook[:, 0].tolist()) == pytest.approx([0.2, 1.5], abs=1e-3)


def test_unused_code_moves_to_a_badly_coded_latent() -> None:
    tokenizer = VisualTokenizer(VisualConfig(codebook=2, code_dim=1, width=4))
    tokenizer.codebook.requires_grad_(False)
    latents = torch.arange(40.0)[:, None]
    book = MovingCodebook(tokenizer, latents[:2], decay=0.5, generator=torch.Generator().manual_seed(0))
    tokenizer.codebook[:] = torch.tensor([[0.0], [-9.0]])
    assert book.restart(latents, tokenizer.nearest(latents), torch.tensor([True, False])) == 1
    assert tokenizer.codebook[0].item() == 0
    assert tokenizer.codebook[1].item() >= 31  # the nine latents farthest from their code


@pytest.mark.slow
def test_command_line_trains_a_whole_model(tmp_path: Path) -> None:
    assert train.main(["visual", "--out", str(tmp_path), "--epochs", "4", "--codebook", "2048", "--width", "16"]) == 0
    assert train.main(["transformer", "--out", str(tmp_path), "--minutes", "0.2", "--batch", "2",
                       "--state", str(tmp_path / "state" / "s.pt")]) == 0
    config, _, _ = checkpoint.load(tmp_path)
    assert config == PRESETS["fastcar-64"]
    for name in ("visual_training", "transformer_training"):
        assert (tmp_path / f"{name}.png").stat().st_size > 1000
        assert json.loads((tmp_path / f"{name}.json").read_text())["runs"][0]["settings"]["seed"] == 0
    with (tmp_path / "visual_training.csv").open() as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["0", "1", "2", "3"]


def test_transformer_without_a_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["transformer", "--out", str(tmp_path), "--minutes", "1"]) == 1
    assert "error: no model file" in capsys.readouterr().err


def test_tokenizer_of_another_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint.save_visual(tmp_path, VisualTokenizer(SMALL_VISUAL))
    assert train.main(["transformer", "--out", str(tmp_path), "--minutes", "1"]) == 1
    assert "needs a tokenizer of 2048 codes" in capsys.readouterr().err


@pytest.mark.parametrize(("settings", "message"), [
    (lambda: TransformerTraining(minutes=0), "minutes must be positive, not 0"),
    (lambda: TransformerTraining(first_frames=-1), "first_frames must be at least 0, not -1"),
    (lambda: TransformerTraining(frames=1), "frames must be at least 2, not 1: clips teach one frame from another"),
    (lambda: TransformerTraining(cooldown=0), "cooldown must be in (0, 1], not 0"),
    (lambda: VisualTraining(epochs=3), "warmup_epochs must be in 1..2, not 3"),
])
def test_bad_settings(settings: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        settings()
    assert str(caught.value) == message
