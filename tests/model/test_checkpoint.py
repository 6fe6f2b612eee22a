"""Tests of model/checkpoint.py."""

from pathlib import Path

import pytest
import torch

from model import checkpoint
from model.config import PRESETS
from model.transformer import Transformer
from model.visual import VisualConfig, VisualTokenizer


def write(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Transformer, VisualTokenizer]:
    torch.manual_seed(0)
    transformer = Transformer(PRESETS["tiny"])
    visual = VisualTokenizer(VisualConfig(codebook=32, code_dim=8, width=16))
    checkpoint.save(folder, PRESETS["tiny"], transformer, visual, dtype)
    return transformer, visual


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip(tmp_path: Path, dtype: torch.dtype) -> None:
    written = write(tmp_path / "deep" / "folder", dtype)
    config, *read = checkpoint.load(tmp_path / "deep" / "folder")
    assert config == PRESETS["tiny"]
    for before, after in zip(written, read, strict=True):
        assert not after.training
        for name, tensor in before.state_dict().items():
            loaded = after.state_dict()[name]
            assert loaded.dtype == torch.float32 and not loaded.requires_grad
            assert torch.equal(loaded, tensor.to(dtype).float()), name


@pytest.mark.parametrize("name", [checkpoint.CONFIG_FILE, checkpoint.TRANSFORMER_FILE, checkpoint.VISUAL_FILE])
def test_missing_file(tmp_path: Path, name: str) -> None:
    write(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(checkpoint.CheckpointError) as caught:
        checkpoint.load(tmp_path)
    assert str(caught.value) == (f"no model file {tmp_path / name}; name a folder that holds a trained model, "
                                 "or train one with python -m model.train")


def test_truncated_file(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / checkpoint.TRANSFORMER_FILE
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(checkpoint.CheckpointError, match="does not fit its configuration or is damaged"):
        checkpoint.load(tmp_path)


def test_other_configuration(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / checkpoint.CONFIG_FILE).write_text(PRESETS["fastcar-64"].to_json())
    with pytest.raises(checkpoint.CheckpointError, match="does not fit its configuration"):
        checkpoint.load(tmp_path)
    (tmp_path / checkpoint.CONFIG_FILE).write_text("{}")
    with pytest.raises(checkpoint.CheckpointError, match="not a model configuration"):
        checkpoint.load(tmp_path)


def test_shipped_model() -> None:
    config, _, visual = checkpoint.load()
    assert config.codebook == visual.config.codebook
    assert sum(path.stat().st_size for path in checkpoint.default_dir().iterdir()) < 25e6
