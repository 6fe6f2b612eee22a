"""``fastcar-host generate`` with VILA-U folders, with folders that cannot be used, and dry runs."""

import json

import imageio_ffmpeg
import numpy as np
import pytest
import torch

from host import cli, vilau
from host.plan import own_plan
from host.settings import DTYPES, VARIANTS
from model import checkpoint, gates
from model import generate as generation
from model.kv_cache import KvCache
from model.replay import FloatMlp
from model.vilau import plan
from tests.model.vilau.folder import PROMPTS, write_folder

OWN_PROMPT = "a red circle moves left"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("vilau") / "model")


@pytest.fixture
def run(folder, tmp_path, capsys):
    """Run ``generate``; returns exit code, stdout lines, stderr lines."""

    def run(*arguments, model=folder, prompt=PROMPTS[0]):
        code = cli.main(["generate", "--model", str(model), "--prompt", prompt, "--out", str(tmp_path / "out"),
                         *arguments])
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err.splitlines()

    return run


def test_a_vilau_folder_generates(run, tmp_path):
    out = tmp_path / "out"
    code, stdout, stderr = run("--gate", "tas", "--variant", "released", "--threshold=-1", "--json")
    assert code == 0 and any("layer steps without MLP" in line for line in stderr)
    assert next(imageio_ffmpeg.read_frames(str(out / "video.mp4")))["size"] == (6, 6)
    assert len(list((out / "frames").iterdir())) == 3 and np.load(out / "tokens.npy").shape == (1, 3, 4, 2)
    stats = json.loads((out / "stats.json").read_text())
    assert json.loads(stdout[-1]) == stats and stats["complete"] and stats["frames"] == 3
    assert stats["tas_variant"] == "released" and 0 < stats["replay_ratio_eligible"] < 1
    assert stats["sampling"] == {"cfg_scale": 3.0, "temperature": 1.0, "top_k": 900, "top_p": 0.96}


def test_the_options_of_a_vilau_model_have_an_effect(run, tmp_path):
    def tokens(*arguments):
        assert run(*arguments)[0] == 0
        return np.load(tmp_path / "out" / "tokens.npy").tolist()

    base = tokens("--dense")
    assert tokens("--dense") == base == tokens("--gate", "tas", "--threshold", "inf") == tokens("--dense", "--window",
                                                                                               "12")
    assert tokens("--dense", "--window", "2") != tokens("--dense", "--window", "2", "--positions", "cache") != base
    assert tokens("--dense", "--seed", "1") != base
    greedy = tokens("--dense", "--temperature", "0")
    assert greedy == tokens("--dense", "--temperature", "0", "--seed", "1") == tokens("--dense", "--top-k", "1")
    assert tokens("--dense", "--top-p", "0.01") == greedy != base
    assert tokens("--dense", "--dtype", "bfloat16", "--temperature", "0", "--frames", "1")


def test_a_dry_run_says_what_it_takes_and_writes_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setattr(vilau, "Pipeline", None)  # calling it would raise
    code, stdout, _ = run("--dense", "--dry-run", "--json")
    assert code == 0 and "it fits" in stdout[-2] and not (tmp_path / "out").exists()
    report = json.loads(stdout[-1])
    assert report["dry_run"] and report["fits"] and report["rows"] == 2
    assert report["replay_bytes"] == 2 * 4 * 2 * 32 * 4  # layers, tokens a frame, rows, hidden, float32
    monkeypatch.setattr(plan, "available", lambda device: 1000)
    code, stdout, _ = run("--dense", "--dry-run")
    assert code == cli.MODEL and "it does not fit" in stdout[-1]
    code, _, stderr = run("--dense")
    assert code == cli.MODEL and "not enough memory" in stderr[0] and not (tmp_path / "out").exists()


@pytest.mark.parametrize("positions, window", [("sequence", None), ("cache", 6)])
def test_a_dry_run_of_our_own_model_counts_what_is_held(run, model_folder, tmp_path, monkeypatch, positions, window):
    code, stdout, _ = run("--threshold", "0.5", "--dry-run", "--json", "--positions", positions, "--frames", "3",
                          *(["--window", str(window)] if window else []), model=model_folder, prompt=OWN_PROMPT)
    assert code == 0 and not (tmp_path / "out").exists()
    report = json.loads(stdout[-1])
    config, transformer, visual = checkpoint.load(model_folder)
    held, engine, gate = [], FloatMlp(transformer), gates.ChangeGate(0.5)

    class Watched(KvCache):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            held.append(self)

    monkeypatch.setattr(generation, "KvCache", Watched)
    generation.generate(transformer, [OWN_PROMPT], [0], frames=3, gate=gate, engine=engine, window=window,
                        positions=positions)
    assert report["kv_bytes"] == held[0].size_bytes
    assert report["replay_bytes"] == engine.ring.size_bytes + gate.reference_bytes
    assert report["parameters_used"] == sum(p.numel() for m in (transformer, visual) for p in m.parameters())
    assert own_plan(config, transformer, visual, rows=2, frames=3, window=window, positions=positions,
                    reference_inputs=False).replay_bytes == engine.ring.size_bytes


@pytest.mark.parametrize("arguments, message", [
    (["--board", "golden", "--dense"], "board 'golden' cannot be used with a VILA-U model"),
    (["--verify", "--dense"], "verify compares a board with the golden model"),
    ([], "give --threshold T"), (["--replay-ratio", "0.5"], "give --threshold T"),
    (["--threshold", "1,2,3"], "3 thresholds for a model of 2 layers"),
    (["--dense", "--device", "nowhere"], "device 'nowhere' is none of torch's"),
    (["--dense", "--dtype", "int8"], "unknown dtype 'int8'; known: float32, bfloat16, float16"),
    (["--dense", "--window", "0"], "window must be at least 1, not 0"),
    (["--dense", "--positions", "up"], "unknown positions 'up'; known: sequence, cache"),
    (["--dense", "--variant", "released"], "add --gate tas"),
    (["--dense", "--top-p", "0"], "top_p must be above 0 and at most 1, not 0.0"),
    (["--dense", "--temperature", "-1"], "temperature must be at least 0, not -1.0"),
    (["--dense", "--prompt", "<vi_end>"], "the prompt contains <vi_end>"),
])
def test_wrong_settings_are_one_line_before_anything_is_loaded(run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.setattr(vilau, "Pipeline", None)  # calling it would raise
    code, stdout, stderr = run(*arguments)
    assert code == cli.USAGE and len(stderr) == 1 and message in stderr[0]
    assert stdout == [] and not (tmp_path / "out").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_cuda_device_is_named(run):
    code, _, stderr = run("--dense", "--device", "cuda")
    assert code == cli.USAGE and "torch finds no CUDA here" in stderr[0]


@pytest.mark.parametrize("arguments, message", [
    (["--device", "cuda"], "device 'cuda' is for VILA-U models"), (["--top-p", "0.5"], "top_p 0.5 is for VILA-U"),
    (["--gate", "tas", "--variant", "cosine"], "replay ratios are calibrated for variant paper")])
def test_options_that_our_own_models_do_not_have(run, model_folder, arguments, message):
    code, _, stderr = run(*arguments, "--board", "golden", model=model_folder, prompt=OWN_PROMPT)
    assert code == cli.USAGE and message in stderr[0]


@pytest.mark.parametrize("fields, name, message", [
    ({"_class_name": "CogVideoXPipeline"}, "model_index.json", "it is a diffusion model"),
    ({"model_type": "infinity"}, "config.json", "it predicts the next scale"),
    ({"architectures": ["ShowoModel"]}, "config.json", "it decodes masked tokens in parallel"),
    ({"model_type": "llama"}, "config.json", "use model.hf.enable_replay"),
    ({"model_type": "vila_u_llama"}, "config.json", "a VILA-U folder has config.json, llm/")])
def test_other_models_are_refused_with_the_reason(run, tmp_path, fields, name, message):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / name).write_text(json.dumps(fields))
    code, _, stderr = run("--dense", model=tmp_path / "other")
    assert code == cli.MODEL and len(stderr) == 1 and message in stderr[0]


def test_names_are_those_of_the_model():
    assert VARIANTS == gates.VARIANTS and set(DTYPES) == set(plan.DTYPES)
