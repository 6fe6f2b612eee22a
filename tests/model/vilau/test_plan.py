"""The memory plan against what a generation really holds."""

import json

import pytest
import torch

from model.gates import FloatChangeGate, TasGate
from model.replay import FloatMlp
from model.vilau import generate as generation
from model.vilau.config import read_config
from model.vilau.plan import MemoryPlan, main, plan
from tests.model.vilau.folder import PROMPTS


@pytest.mark.parametrize("window", [None, 3])
def test_plan_is_what_is_held(folder, model, tokenizer, monkeypatch, window):
    runs = []

    class Watched(generation.LlamaRun):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            runs.append(self)

    monkeypatch.setattr(generation, "LlamaRun", Watched)
    engine = FloatMlp(model.llm)
    generation.generate(model, tokenizer, PROMPTS, [1, 2], gate=TasGate(0.0), engine=engine, window=window)
    ids, _ = tokenizer.batch(PROMPTS)
    found = plan(read_config(folder), rows=4, prompt_tokens=ids.shape[1], window=window)
    assert found.kv_bytes == runs[0].cache.size_bytes and found.replay_bytes == engine.ring.size_bytes
    weights = {id(tensor): tensor for tensor in model.state_dict(keep_vars=True).values() if not tensor.is_meta}
    assert found.weight_bytes == sum(tensor.numel() * 4 for tensor in weights.values())


def test_the_change_gate_keeps_reference_inputs(folder, model, tokenizer):
    gate = FloatChangeGate(0.5)
    generation.generate(model, tokenizer, PROMPTS, [1, 2], gate=gate)
    assert plan(read_config(folder), rows=4, prompt_tokens=9, reference_inputs=True).replay_bytes == (
        2 * gate.reference_bytes)


def test_narrow_types_and_what_does_not_fit(folder):
    wide = plan(read_config(folder), rows=2, prompt_tokens=9)
    narrow = plan(read_config(folder), rows=2, prompt_tokens=9, dtype=torch.bfloat16)
    assert narrow.total_bytes * 2 == wide.total_bytes and wide.fits
    small = MemoryPlan(**{name: getattr(wide, name) for name in MemoryPlan.__dataclass_fields__}
                       | {"available_bytes": wide.total_bytes})
    assert not small.fits and "it does not fit" in small.text() and "it fits" in wide.text()


def test_command(folder, capsys):
    assert main([str(folder), "--prompt", PROMPTS[0], "--frames", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["rows"] == 2 and report["frames"] == 2 and report["fits"] is True
    assert main([str(folder), "--prompt", " "]) == 2
    assert "plan: the prompt is empty" in capsys.readouterr().err
    assert main([str(folder / "none"), "--prompt", "a"]) == 2
    assert main([str(folder), "--prompt", "a", "--frames", "0"]) == 2
    assert "frames must be at least 1, not 0" in capsys.readouterr().err
