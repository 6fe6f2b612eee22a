import numpy as np
import pytest

from host import compile as compiler
from host.compile import CompileError, compile_layer, compile_model, program
from hw.config import preset
from hw.isa import INSTRUCTION_BYTES, Instruction, Opcode
from hw.layout import layer_beats, unpack_layer
from model.integer import MlpWeights
from tests.host.jobs import random_weights

SEED = 711


def some_layer(seed: int = SEED) -> MlpWeights:
    return random_weights(np.random.default_rng(seed), 64, 96)


@pytest.mark.parametrize("name", ["tiny", "sim", "u280"])
@pytest.mark.parametrize("hidden, intermediate", [(32, 32), (96, 160), (128, 256)])
def test_a_stream_unpacks_to_its_weights(name, hidden, intermediate):
    config = preset(name)
    weights = random_weights(np.random.default_rng(SEED), hidden, intermediate)
    layer = compile_layer(config, weights)
    assert layer.beats == layer_beats(config, hidden, intermediate)
    assert layer.down_scale == weights.down.largest_scale
    found = unpack_layer(config, layer.stream, hidden, intermediate)
    for name in ("gate", "up", "down"):
        np.testing.assert_array_equal(getattr(found, name).codes, getattr(weights, name).codes)
        np.testing.assert_array_equal(getattr(found, name).scales, getattr(weights, name).scales)


def test_a_program_names_every_slot_once_per_kind():
    layer = compile_layer(preset("tiny"), random_weights(np.random.default_rng(SEED), 64, 96))
    data = program(layer, offset=8192, slots=3, heads=2).tobytes()
    found = [Instruction.decode(data[at:at + INSTRUCTION_BYTES]) for at in range(0, len(data), INSTRUCTION_BYTES)]
    assert [i.opcode for i in found[:2]] == [Opcode.LAYER, Opcode.WEIGHTS]
    assert [i.opcode for i in found[-2:]] == [Opcode.RUN, Opcode.END]
    assert found[1].offset == 8192
    for opcode, stride in ((Opcode.SCORES, 64), (Opcode.LOAD, 128), (Opcode.STORE, 128)):
        assert [(i.slot, i.offset) for i in found if i.opcode == opcode] == [(s, s * stride) for s in range(3)]


def test_more_slots_than_a_job_carries_are_refused():
    layer = compile_layer(preset("tiny"), random_weights(np.random.default_rng(SEED), 32, 32))
    with pytest.raises(CompileError, match=r"1\.\.32 slots, not 33"):
        program(layer, 0, 33, 2)


def test_a_layer_too_large_for_the_preset_is_refused():
    with pytest.raises(CompileError, match="hidden size 160 is more than the 128 that preset 'tiny' holds"):
        compile_layer(preset("tiny"), random_weights(np.random.default_rng(SEED), 160, 32))


def test_the_second_compilation_comes_from_the_cache(tmp_path, monkeypatch):
    layers = [some_layer(SEED + n) for n in range(2)]
    first = compile_model(preset("tiny"), layers, tmp_path)
    monkeypatch.setattr(compiler, "compile_layer", None)  # calling it would raise
    second = compile_model(preset("tiny"), layers, tmp_path)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a.stream, b.stream)
        assert (a.hidden, a.intermediate, a.gate_scale, a.up_scale, a.down_scale) == (
            b.hidden, b.intermediate, b.gate_scale, b.up_scale, b.down_scale)
    assert [path.suffix for path in tmp_path.iterdir()] == [".npz"]


def test_other_weights_or_another_preset_are_compiled_anew(tmp_path):
    layer = some_layer()
    other = MlpWeights(layer.up, layer.gate, layer.down)
    streams = [compile_model(preset(name), [each], tmp_path)[0].stream
               for name, each in (("tiny", layer), ("tiny", other), ("sim", layer))]
    assert (streams[0] != streams[1]).any()
    assert streams[0].shape[0] != streams[2].shape[0]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"\x93NUMPY"])
def test_a_damaged_cache_file_is_compiled_over(tmp_path, content):
    layers = [some_layer()]
    expected = compile_model(preset("tiny"), layers, tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    found = compile_model(preset("tiny"), layers, tmp_path)
    np.testing.assert_array_equal(found[0].stream, expected[0].stream)
    assert path.stat().st_size > expected[0].stream.size


def test_a_cache_folder_that_cannot_be_made_does_not_matter(tmp_path):
    (tmp_path / "file").write_text("in the way")
    layers = [some_layer()]
    assert len(compile_model(preset("tiny"), layers, tmp_path / "file" / "cache")) == 1
