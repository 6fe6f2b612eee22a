"""The profile: parts are told apart, options and files."""

import json

import pytest
import torch

from model import profile
from model.profile import PARTS, Shape, Stopwatch, layer_subject, main, measure, own_subject, run_once

SMALL = Shape(hidden=64, intermediate=96, heads=2)


@pytest.fixture
def clock(monkeypatch):
    """Time passes only where a test lets it."""
    now = [0.0]
    for name in ("process_time", "perf_counter"):
        monkeypatch.setattr(profile.time, name, lambda: now[0])
    return now


@pytest.mark.parametrize("phase, length", [("prefill", 5), ("decode", 5)])
def test_time_goes_to_the_part_it_is_spent_in(monkeypatch, clock, phase, length):
    subject = layer_subject(SMALL, torch.float32)
    attend = torch.nn.functional.scaled_dot_product_attention
    seen = []

    def attended(q, k, v, is_causal):
        clock[0] += 3
        seen.append((q.shape[2], k.shape[2], is_causal))
        return attend(q, k, v, is_causal=is_causal)

    def passes(seconds):
        def hook(*_):
            clock[0] += seconds
        return hook

    monkeypatch.setattr(profile.functional, "scaled_dot_product_attention", attended)
    block = subject.blocks[0]
    block.mlp.register_forward_hook(passes(10))
    block.attention.q_proj.register_forward_hook(passes(0.5))
    block.attention.o_proj.register_forward_hook(passes(1))
    block.input_norm.register_forward_hook(passes(0.25))
    assert run_once(subject, phase, length, rows=2) == {"mlp": 10, "attention": 3, "projections": 1.5, "head": 0,
                                                        "rest": 0.25}
    assert seen == [(5, 5, True)] if phase == "prefill" else [(1, 6, False)]


def test_a_pass_is_what_the_blocks_compute():
    subject = layer_subject(SMALL, torch.float32)
    generator = torch.Generator().manual_seed(2)
    x, angles = (torch.randn(shape, generator=generator) for shape in ((2, 6, 64), (6, 16)))
    tables = angles.cos(), angles.sin()
    expected = subject.blocks[0](x, tables, torch.ones(6, 6, dtype=torch.bool).tril())
    torch.testing.assert_close(profile.timed_pass(subject, x, tables, [], Stopwatch()), expected)
    _, keys, values = subject.blocks[0].attention.project(subject.blocks[0].input_norm(x), tables)
    past = [torch.cat((held[:, :, :5], torch.zeros(2, 2, 1, 32)), dim=2) for held in (keys, values)]
    last = profile.timed_pass(subject, x[:, 5:], tuple(table[5:] for table in tables), past, Stopwatch())
    torch.testing.assert_close(last, expected[:, 5:])


def test_repeats_end_with_the_budget(monkeypatch):
    subject = layer_subject(SMALL, torch.bfloat16)
    assert "bfloat16" in subject.name
    assert measure(subject, "decode", 3, rows=1, repeats=4, budget=60).repeats == 4
    assert measure(subject, "decode", 3, rows=1, repeats=4, budget=0).repeats == 1


def test_a_missing_model_is_its_shape_unless_one_was_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(profile.checkpoint, "default_dir", lambda: tmp_path)
    assert own_subject(None).name == "fastcar-64, random weights"
    assert main(["--model", str(tmp_path), "--no-7b"]) == 2
    assert "no model file" in capsys.readouterr().err


def test_command_writes_table_report_and_picture(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(profile, "LLAMA_7B", SMALL)
    threads = torch.get_num_threads()
    assert main(["--lengths", "4,8", "--repeats", "1", "--rows", "1", "--out", str(tmp_path / "p"), "--json"]) == 0
    torch.set_num_threads(threads)
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert json.loads((tmp_path / "p" / "profile.json").read_text()) == report
    found = [(item["phase"], item["length"]) for item in report["measurements"]]
    assert found == [("prefill", 4), ("prefill", 8), ("decode", 4), ("decode", 8)] * 2
    own, layer = report["measurements"][0], report["measurements"][4]
    assert set(own["seconds"]) == set(PARTS) and own["seconds"]["head"] > 0 and layer["seconds"]["head"] == 0
    assert report["conditions"]["threads"] == 1 and "projections" in captured.err
    assert (tmp_path / "p" / "profile.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("arguments", [["--lengths", "0"], ["--rows", "0"], ["--lengths", "many"]])
def test_wrong_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
