import json
import shutil

import imageio.v3 as imageio
import numpy as np
import pytest
from rich.console import Console

from host import table
from model.presets import Curve, ReplayPresets
from model.table import Case

PRESETS = ReplayPresets(fingerprint="f", curves=(
    Curve(gate="change", joint_pairs=False, points=((0.2, 0.1), (0.8, 0.4))),))

HALF = Case(gate="change", ratio=0.5)


@pytest.fixture
def runs(monkeypatch):
    """Settings of every run; each writes statistics as the real one does, with cycles from its number."""
    made = []

    def run(settings, console):
        made.append(settings)
        stats = {"complete": True, "settings": settings.to_dict(), "model": "f", "cycles_decode": 100 * len(made),
                 "weight_bytes": 10, "replay_ratio_eligible": 0.5, "jobs_without_weight_reads": 4,
                 "mac_utilisation": 0.25}
        settings.out.mkdir(parents=True, exist_ok=True)
        (settings.out / "stats.json").write_text(json.dumps(stats))
        return stats

    monkeypatch.setattr(table, "run", run)
    return made


def row(folder, case=HALF, **changes):
    options = dict(videos=2, frames=8, seed=3, preset="sim", console=Console(stderr=True, quiet=True)) | changes
    return table.board_row(case, PRESETS, "f", folder, **options)


def test_a_row_is_the_mean_over_videos_with_the_calibrated_threshold(runs, tmp_path):
    assert row(tmp_path) == {"cycles_decode": 150, "weight_bytes": 10, "replay_ratio_eligible": 0.5,
                             "jobs_without_weight_reads": 4, "mac_utilisation": 0.25}
    assert [s.threshold for s in runs] == [(pytest.approx(0.25),)] * 2 and [s.seed for s in runs] == [3, 4]


def test_a_dense_row_has_no_threshold(runs, tmp_path):
    row(tmp_path, Case(gate="dense", ratio=0))
    assert all(s.dense and s.threshold is None for s in runs)


def test_what_is_done_is_not_run_again_unless_something_changed(runs, tmp_path):
    first = row(tmp_path)
    assert row(tmp_path) == first and len(runs) == 2
    row(tmp_path, frames=4)
    assert len(runs) == 4


def test_the_table_has_cycles_and_speed_up_where_the_board_ran():
    quality = {name: {"replay_ratio_eligible": r, "psnr": p, "accuracy": 0.9, "motion_kept": 0.8}
               for name, r, p in (("dense", 0, None), ("change 50%", 0.5, 20.0), ("random 50%", 0.5, 15.0))}
    board = {"dense": {"cycles_decode": 3e6, "weight_bytes": 100},
             "change 50%": {"cycles_decode": 2e6, "weight_bytes": 60}}
    lines = table.markdown(quality, board).splitlines()
    assert lines[2] == "| dense | 0.0% | 3.00 M | 1.00x | 100% | same | 90.0% | 0.80 |"
    assert lines[3] == "| change 50% | 50.0% | 2.00 M | 1.50x | 60% | 20.0 dB | 90.0% | 0.80 |"
    assert lines[4] == "| random 50% | 50.0% | – | – | – | 15.0 dB | 90.0% | 0.80 |"


def test_the_picture_has_a_row_for_every_setting_that_has_frames(tmp_path):
    for name in ("dense", "change-50"):
        frames = tmp_path / name / "0" / "frames"
        frames.mkdir(parents=True)
        for number in range(3):
            imageio.imwrite(frames / f"{number}.png", np.full((8, 8, 3), 80 * number, dtype=np.uint8))
    table.picture(tmp_path, tmp_path / "two.png", 0)
    shutil.rmtree(tmp_path / "change-50")
    table.picture(tmp_path, tmp_path / "one.png", 0)
    two, one = (imageio.imread(tmp_path / name) for name in ("two.png", "one.png"))
    assert two.shape[1] == one.shape[1] and two.shape[0] == 2 * one.shape[0]
