import json
import shutil
import signal
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

from host import cli, generate
from host.golden import GoldenBoard
from model import checkpoint
from model.presets import Curve, ReplayPresets, fingerprint
from sim import verilator

PROMPT = "a red circle moves left"


@pytest.fixture
def run(model_folder, tmp_path, capsys):
    """Run ``generate`` on the golden board with a tiny random model; returns exit code, stdout lines, stderr lines."""

    def run(*arguments: str, out: Path | None = None, prompt: str = PROMPT):
        common = ["--model", str(model_folder), "--board", "golden", "--preset", "tiny", "--prompt", prompt,
                  "--out", str(out or tmp_path / "out")]
        code = cli.main(["generate", *common, *arguments])
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err.splitlines()

    return run


def stats_in(folder: Path) -> dict:
    return json.loads((folder / "stats.json").read_text())


def test_a_run_writes_video_pictures_tokens_and_statistics(run, tmp_path):
    out = tmp_path / "out"
    code, stdout, _ = run("--frames", "3", "--threshold", "0.5", "--json")
    assert code == 0
    assert next(imageio_ffmpeg.read_frames(str(out / "video.mp4")))["size"] == (128, 128)
    assert sorted(p.name for p in (out / "frames").iterdir()) == ["000.png", "001.png", "002.png"]
    assert np.load(out / "tokens.npy").shape == (1, 3, 16)
    stats = stats_in(out)
    assert json.loads(stdout[-1]) == stats
    assert stats["complete"] and stats["message"] == "complete" and stats["frames"] == 3
    assert stats["settings"]["threshold"] == [0.5] and stats["gate"]["name"] == "change"
    assert 0 < stats["replay_ratio"] < stats["replay_ratio_eligible"] <= 1
    assert stats["jobs"] == {"prefill": 2, "decode": 2 * 47}
    assert stats["cycles"] == 0 and stats["mac_utilisation"] is None
    assert stats["board"]["simulated"] is False and "no clock" in " ".join(stats["provenance"].values())
    # Every decode row computed or replayed, and the board's counters say the same as the index bits.
    decode = stats["counters"]["decode"]
    assert decode["rows_replayed"] == stats["row_steps_replayed"]
    assert sum(stats["rows_per_core"]) == decode["rows_computed"]
    assert decode["rows_computed"] + decode["rows_replayed"] == stats["row_steps"] == 2 * 2 * 47


@pytest.mark.parametrize("gate", ["tas", "change"])
def test_the_same_command_twice_gives_the_same_tokens(run, tmp_path, gate):
    for name in ("a", "b"):
        assert run("--frames", "2", "--gate", gate, "--threshold", "0.3", out=tmp_path / name)[0] == 0
    assert stats_in(tmp_path / "a")["tokens_sha256"] == stats_in(tmp_path / "b")["tokens_sha256"]
    assert run("--frames", "2", "--dense", "--seed", "8", out=tmp_path / "c")[0] == 0
    assert stats_in(tmp_path / "c")["tokens_sha256"] != stats_in(tmp_path / "a")["tokens_sha256"]


def test_several_videos_get_a_folder_each(run, tmp_path):
    code, stdout, _ = run("--prompt", "a blue square moves up", "--num-videos", "2", "--frames", "1", "--dense")
    assert code == 0
    names = [f"video-{n:02d}" for n in range(4)]
    assert stdout == [*(str(tmp_path / "out" / name / "video.mp4") for name in names), str(tmp_path / "out/stats.json")]
    assert all((tmp_path / "out" / name / "frames" / "000.png").is_file() for name in names)
    assert [v["seed"] for v in stats_in(tmp_path / "out")["videos"]] == [0, 1, 2, 3]


def test_infinite_thresholds_and_per_layer_ones(run, tmp_path):
    assert run("--frames", "2", "--gate", "tas", "--threshold=-inf")[0] == 0
    stats = stats_in(tmp_path / "out")
    assert stats["replay_ratio_eligible"] == 1 and stats["gate"]["thresholds"] == ["-inf"]
    assert run("--frames", "2", "--gate", "tas", "--threshold=inf,-inf")[0] == 0
    assert stats_in(tmp_path / "out")["replay_ratio_per_layer"] == [0, 1]


def test_a_replay_ratio_is_looked_up_among_the_calibrated_ones(run, tmp_path, model_folder):
    folder = tmp_path / "calibrated"
    shutil.copytree(model_folder, folder)
    _, transformer, _ = checkpoint.load(folder)
    curve = Curve(gate="change", joint_pairs=False, points=((0.2, 0.1), (0.6, 0.3)))
    ReplayPresets(fingerprint=fingerprint(transformer), curves=(curve,)).save(folder)
    assert run("--frames", "2", "--replay-ratio", "0.4", "--model", str(folder))[0] == 0
    assert stats_in(tmp_path / "out")["gate"]["thresholds"] == [pytest.approx(0.2)]
    code, _, stderr = run("--replay-ratio", "0.9", "--model", str(folder))
    assert code == cli.USAGE and "outside the calibrated 0.20..0.60" in stderr[0]
    code, _, stderr = run("--gate", "tas", "--model", str(folder))
    assert code == cli.USAGE and "no calibration of gate tas for this model; give a threshold" in stderr[0]
    code, _, stderr = run()
    assert code == cli.USAGE and "no calibrated thresholds" in stderr[0]
    assert run("--frames", "1", "--replay-ratio", "0")[0] == 0
    assert stats_in(tmp_path / "out")["gate"] == {"name": "dense"}


def test_verify_on_the_golden_board_says_that_it_compares_nothing(run, tmp_path):
    code, _, stderr = run("--frames", "1", "--dense", "--verify")
    assert code == 0 and any("compares nothing" in line for line in stderr)
    assert stats_in(tmp_path / "out")["verify"] == {"requested": True, "elements_compared": 0}


def test_verify_compares_every_element_of_another_board(run, tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "open_board", lambda name, preset: GoldenBoard(preset))
    assert run("--frames", "1", "--dense", "--verify", "--board", "sim")[0] == 0
    assert stats_in(tmp_path / "out")["verify"]["elements_compared"] == 2 * 64 * (2 * 16 + 2 * 15)


def test_verify_fails_on_a_flipped_weight_bit_with_place_and_values(run, tmp_path, monkeypatch):
    class Worn(GoldenBoard):
        """Loses a weight bit once the weights are in."""

        def write_csr(self, address: int, value: int) -> None:
            if address == 0x40:
                self.write_memory(64, np.array([self.first ^ 0x40], dtype=np.uint8))
            super().write_csr(address, value)

        def write_memory(self, address: int, array: np.ndarray) -> None:
            if address == 0:
                self.first = int(np.asarray(array).reshape(-1).view(np.uint8)[64])
            super().write_memory(address, array)

    monkeypatch.setattr(generate, "open_board", lambda name, preset: Worn(preset))
    code, stdout, stderr = run("--frames", "1", "--dense", "--verify", "--board", "sim", "--json")
    assert code == cli.DIFFERENT
    assert "layer 0, prelude, token" in stderr[-1] and "the board gives" in stderr[-1]
    assert json.loads(stdout[-1])["exit_code"] == cli.DIFFERENT
    assert not (tmp_path / "out" / "video.mp4").exists()


def test_an_interrupt_leaves_a_playable_partial_video_that_says_so(run, tmp_path, monkeypatch):
    class Interrupted(GoldenBoard):
        """The user presses Ctrl-C in the third frame."""

        jobs = 0

        def wait(self, timeout_cycles: int) -> None:
            self.jobs += 1
            if self.jobs == 2 + 2 * 40:
                signal.raise_signal(signal.SIGINT)
            super().wait(timeout_cycles)

    monkeypatch.setattr(generate, "open_board", lambda name, preset: Interrupted(preset))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "video.mp4").write_text("of an earlier run")
    code, stdout, stderr = run("--frames", "4", "--dense", "--json")
    assert code == 0
    reader = imageio_ffmpeg.read_frames(str(tmp_path / "out" / "video.mp4"))
    assert next(reader)["codec"] == "h264" and len(list(reader)) == 2
    stats = stats_in(tmp_path / "out")
    assert not stats["complete"] and stats["message"].startswith("interrupted after 2 of 4 frames")
    assert any("interrupted after 2 of 4 frames" in line for line in stderr)
    assert json.loads(stdout[-1])["complete"] is False


def test_an_interrupt_before_the_first_frame_leaves_no_video(run, tmp_path, monkeypatch):
    class Interrupted(GoldenBoard):
        def wait(self, timeout_cycles: int) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(generate, "open_board", lambda name, preset: Interrupted(preset))
    code, _, stderr = run("--dense")
    assert code == cli.INTERRUPTED
    assert not (tmp_path / "out" / "video.mp4").exists()
    assert any("no frame was finished" in line for line in stderr)


@pytest.mark.parametrize("arguments, message", [
    (["--threshold", "much"], "'much' is no threshold"),
    (["--threshold", "nan"], "threshold must be a number, or one per layer"),
    (["--threshold", "1,2,3"], "3 thresholds for a model of 2 layers"),
    (["--threshold", "1", "--dense"], "not allowed with argument"),
    (["--replay-ratio", "1.5"], "replay_ratio must be in 0..1 (1 excluded), not 1.5"),
    (["--frames", "0"], "frames must be at least 1, not 0"),
    (["--seed", "-1"], "seed must be in 0..2**62 - 1, not -1"),
    (["--cfg-scale", "nan"], "cfg_scale must be at least 0"),
    (["--preset", "huge"], "unknown preset 'huge'; known: tiny, sim"),
    (["--board", "pcie"], "unknown board 'pcie'; known: sim, golden"),
    (["--gate", "magic"], "unknown gate 'magic'; known: tas, change"),
    (["--num-videos", "17", "--dense"], "17 videos at once are 34 rows (guidance doubles them), the board has 32"),
    (["--prompt", "a red dog moves left"], "unknown word 'dog' in the prompt; the vocabulary is:"),
    (["--prompt", "red circle"], "the grammar is:"),
    (["--prompt", "a red circle moves left on a red background"], "cannot be seen"),
    (["--colour", "red"], "unrecognized arguments"),
])
def test_wrong_settings_are_one_line_before_the_work_starts(run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.setattr(generate, "open_board", None)  # calling it would raise
    code, stdout, stderr = run(*arguments)
    assert code == cli.USAGE
    assert len(stderr) == 1 and stderr[0].startswith("fastcar-host: error: ") and message in stderr[0]
    assert stdout == [] and not (tmp_path / "out").exists()


def test_a_missing_or_damaged_model_is_named(run, tmp_path, model_folder):
    code, _, stderr = run("--model", str(tmp_path / "nowhere"))
    assert code == cli.MODEL and len(stderr) == 1 and "no model file" in stderr[0] and "nowhere" in stderr[0]
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in model_folder.iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    (broken / "transformer.safetensors").write_bytes(b"junk")
    code, _, stderr = run("--model", str(broken), "--dense")
    assert code == cli.MODEL and "does not fit its configuration or is damaged" in stderr[-1]


def test_an_output_folder_that_cannot_be_made_is_named_before_the_board_is_opened(run, tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "open_board", None)
    (tmp_path / "file").write_text("in the way")
    code, stdout, stderr = run("--dense", "--json", out=tmp_path / "file" / "out")
    assert code == cli.OUTPUT and len(stderr) == 1
    assert "cannot write to the output folder" in stderr[0] and "name another one with --out" in stderr[0]
    assert json.loads(stdout[-1]) == {"error": json.loads(stdout[-1])["error"], "exit_code": cli.OUTPUT}


def test_a_full_disk_is_named_before_the_board_is_opened(run, monkeypatch):
    monkeypatch.setattr(generate, "open_board", None)
    monkeypatch.setattr("host.output.shutil.disk_usage", lambda path: type("Usage", (), {"free": 1 << 20}))
    code, _, stderr = run("--dense")
    assert code == cli.OUTPUT and "is full: 1 MiB free, 16 MiB needed" in stderr[0]


def test_a_board_that_stops_is_named(run, monkeypatch):
    class Broken(GoldenBoard):
        def _program(self) -> bytes:
            return bytes(16)

    monkeypatch.setattr(generate, "open_board", lambda name, preset: Broken(preset))
    code, _, stderr = run("--dense")
    assert code == cli.BOARD and "the board stopped with error OPCODE (1) at instruction 0" in stderr[-1]


@pytest.mark.parametrize("missing, package", [("g++", "g++"), ("make", "make")])
def test_a_missing_compiler_or_make_is_one_line_that_says_what_to_install(run, tmp_path, monkeypatch, missing, package):
    which = shutil.which
    monkeypatch.setattr("sim.verilator.shutil.which", lambda name: None if name == missing else which(name))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(checkpoint, "load", None)  # calling it would raise
    verilator.find.cache_clear()
    code, stdout, stderr = run("--board", "sim", "--dense")
    verilator.find.cache_clear()
    assert code == cli.BOARD and stdout == [] and len(stderr) == 1
    assert f"apt install {package}" in stderr[0] and not (tmp_path / "out").exists()


def test_info_and_board_test(capsys):
    assert cli.main(["info", "--board", "golden", "--preset", "u280", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["identification"]["PORTS"] == 32 and report["capabilities"]["largest_hidden"] == 4096
    assert cli.main(["info", "--board", "golden"]) == 0
    assert "MAGIC                    0x46435231" in capsys.readouterr().out
    assert cli.main(["board-test", "--board", "golden", "--preset", "tiny", "--rows", "9", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["passed"] and report["elements_compared"] == 7 * 128 and report["rows_replayed"] == 2
    assert cli.main(["board-test", "--board", "golden", "--preset", "tiny", "--hidden", "160"]) == cli.USAGE
    assert "hidden size 160 is more than the 128" in capsys.readouterr().err
    assert cli.main(["board-test", "--board", "golden", "--rows", "0"]) == cli.USAGE


def test_a_board_test_on_a_bad_board_fails_with_the_place(capsys, monkeypatch):
    class Leaky(GoldenBoard):
        def read_memory(self, address: int, size: int) -> np.ndarray:
            data = super().read_memory(address, size)
            data[5 % size] ^= 1
            return data

    monkeypatch.setattr(cli, "open_board", lambda name, preset: Leaky(preset))
    assert cli.main(["board-test", "--board", "golden", "--preset", "tiny"]) == cli.DIFFERENT
    assert "memory at 0x5 does not hold what was written" in capsys.readouterr().err


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["generate", "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "--replay-ratio" in text and "exit codes" in text and "moves right" in text
