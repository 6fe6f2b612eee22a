"""Loading: file formats, what is named when files and configuration disagree, the real model's names and shapes."""

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.checkpoint import CheckpointError
from model.vilau.config import PUBLISHED_SIGLIP, VilaConfig, VisionConfig, read_config
from model.vilau.llm import LlamaConfig
from model.vilau.loader import build, check, expected_tensors, is_vilau, load
from tests.model.vilau.folder import REFERENCE, write_folder

GATE = "model.layers.1.mlp.gate_proj.weight"


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def tensors_of(folder, part="llm"):
    return load_file(folder / part / "model.safetensors")


def rewrite(folder, tensors, part="llm"):
    save_file(tensors, folder / part / "model.safetensors")


def same(one, other):
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(
        tensor.device == theirs[name].device and (tensor.is_meta or torch.equal(tensor, theirs[name]))
        for name, tensor in mine.items())


def test_only_what_generation_needs_takes_memory(model):
    unused = {name for name, tensor in model.state_dict().items() if tensor.is_meta}
    assert "llm.head.weight" in unused and "llm.embed.weight" not in unused
    assert all(name.startswith(("llm.head", "vision_tower.rqvaesiglip.")) for name in unused)


def test_torch_files_and_shards_load_alike(model, copy):
    tensors = tensors_of(copy)
    torch.save(tensors, copy / "llm" / "pytorch_model.bin")
    (copy / "llm" / "model.safetensors").unlink()
    tower = tensors_of(copy, "vision_tower")
    names = sorted(tower)
    shards = {"a.safetensors": names[:50], "b.safetensors": names[50:]}
    for shard, keys in shards.items():
        save_file({key: tower[key] for key in keys}, copy / "vision_tower" / shard)
    (copy / "vision_tower" / "model.safetensors").unlink()
    (copy / "vision_tower" / "model.safetensors.index.json").write_text(json.dumps(
        {"weight_map": {key: shard for shard, keys in shards.items() for key in keys}}))
    assert same(load(copy), model)


def test_sharded_torch_files(model, copy):
    tensors = tensors_of(copy)
    names = sorted(tensors)
    for shard, keys in (("p1.bin", names[::2]), ("p2.bin", names[1::2])):
        torch.save({key: tensors[key] for key in keys}, copy / "llm" / shard)
    (copy / "llm" / "model.safetensors").unlink()
    (copy / "llm" / "pytorch_model.bin.index.json").write_text(json.dumps(
        {"weight_map": {key: f"p{1 + place % 2}.bin" for place, key in enumerate(names)}}))
    assert same(load(copy), model)
    (copy / "llm" / "p2.bin").unlink()
    with pytest.raises(CheckpointError, match="names p2.bin, which is not there; download the missing files"):
        load(copy)


def test_missing_extra_and_wrong_shapes_are_named_together(copy):
    tensors = tensors_of(copy)
    del tensors["model.norm.weight"]
    tensors["model.layers.2.mlp.up_proj.weight"] = torch.zeros(2)
    tensors[GATE] = torch.zeros(3, 32)
    rewrite(copy, tensors)
    with pytest.raises(CheckpointError) as error:
        check(copy)
    text = str(error.value)
    assert "llm: 1 missing: model.norm.weight" in text
    assert "llm: 1 not expected: model.layers.2.mlp.up_proj.weight" in text
    assert f"1 wrong shapes: {GATE} has shape [3, 32] instead of [48, 32]" in text


def test_not_strict_forgives_what_generation_does_not_need(copy, model):
    tensors = tensors_of(copy)
    del tensors["lm_head.weight"]
    tensors["extra"] = torch.zeros(1)
    rewrite(copy, tensors)
    with pytest.raises(CheckpointError, match="1 missing: lm_head.weight"):
        load(copy)
    assert same(load(copy, strict=False), model)
    del tensors[GATE]
    rewrite(copy, tensors)
    with pytest.raises(CheckpointError, match=f"1 missing: {GATE}"):
        load(copy, strict=False)


def test_rotary_buffers_of_old_releases_are_ignored(copy, model):
    rewrite(copy, tensors_of(copy) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)})
    assert same(load(copy), model)


@pytest.mark.parametrize("damage, message", [
    (lambda d: (d / "llm" / "model.safetensors").unlink(), "no weights in .*llm: one of model.safetensors"),
    (lambda d: (d / "llm" / "model.safetensors").write_bytes(b"short"), "is damaged or no weight file"),
    (lambda d: (d / "vision_tower" / "config.json").unlink(), "no readable .*vision_tower.config.json"),
    (lambda d: (d / "llm" / "config.json").write_text("{"), "is not JSON"),
    (lambda d: (d / "llm" / "config.json").write_text("[]"), "must hold one JSON object, not list"),
    (lambda d: (d / "siglip" / "config.json").unlink(), "put its config.json at"),
    (lambda d: (d / "mm_projector" / "config.json").write_text('{"mm_projector_type": "linear"}'), "not 'linear'"),
])
def test_damaged_folders(copy, damage, message):
    damage(copy)
    with pytest.raises(CheckpointError, match=message):
        load(copy)


def test_a_pickle_that_runs_code_is_refused(copy):
    class Evil:
        def __reduce__(self):
            return print, ("ran",)

    (copy / "llm" / "model.safetensors").unlink()
    torch.save({"model.norm.weight": Evil()}, copy / "llm" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="is damaged or no weight file"):
        load(copy)


def test_shared_codebook_is_stored_once_or_under_every_name(tmp_path):
    folder = write_folder(tmp_path / "model", shared=True)
    model = load(folder)
    books = model.vision_tower.rqvaesiglip.quantizer.codebooks
    assert books[1].weight is books[0].weight and not books[0].weight.is_meta
    tensors = tensors_of(folder, "vision_tower")
    for name in [name for name in tensors if ".codebooks.0." in name]:
        tensors[name.replace(".0.", ".1.")] = tensors[name].clone()
    rewrite(folder, tensors, "vision_tower")
    assert same(load(folder), model)


@pytest.mark.parametrize("file, fields, reason", [
    ("model_index.json", {"_class_name": "CogVideoXPipeline"}, "diffusion model"),
    ("config.json", {"_class_name": "HunyuanVideoTransformer3DModel"}, "diffusion model"),
    ("config.json", {"architectures": ["InfinityForVideo"]}, "predicts the next scale"),
    ("config.json", {"model_type": "magvit2"}, "decodes masked tokens in parallel"),
    ("model_index.json", {"_class_name": "AmusedPipeline"}, "decodes masked tokens in parallel"),
])
def test_models_that_cannot_fit_are_refused_with_the_reason(tmp_path, file, fields, reason):
    (tmp_path / file).write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match=reason):
        load(tmp_path)


def test_kind_of_a_folder(folder, tmp_path):
    assert is_vilau(folder) and not is_vilau(tmp_path)


@pytest.fixture(scope="module")
def manifest():
    path = REFERENCE / "vila_u_7b_256_state_dict_manifest.json"
    if not path.is_file():
        pytest.skip(f"no reference manifest {path.name}")
    return json.loads(path.read_text())


def test_names_and_shapes_of_the_real_model(manifest):
    llm = LlamaConfig(hidden=4096, intermediate=11008, layers=32, heads=32, vocab=32004)
    siglip = PUBLISHED_SIGLIP["google/siglip-large-patch16-256"]
    vision = VisionConfig.from_published(manifest["assumed_config"], siglip)
    shapes = expected_tensors(build(VilaConfig(llm=llm, vision=vision)))
    entries = manifest["entries"]
    assert sum(entry["certainty"] == "certain" for entry in entries) == 1087
    for entry in entries:
        key = entry["key_in_folder"]
        assert shapes[entry["folder"]].get(key) == tuple(entry["shape"]), f"{entry['certainty']}: {key}"
    assert sum(map(len, shapes.values())) == len(entries)
    for folder, count in manifest["parameter_elements_per_folder"].items():
        assert sum(map(math.prod, shapes[folder].values())) == count


@pytest.mark.parametrize("name", ["vilau_tiny_16", "vilau_tiny_256"])
def test_state_dict_of_the_tiny_checkpoints(name):
    folder = REFERENCE / name
    if not folder.is_dir():
        pytest.skip(f"no reference checkpoint {name}")
    listed = json.loads((folder / "state_dict_manifest.json").read_text())["entries"]
    expected = {entry["name"]: tuple(entry["shape"]) for entry in listed}
    prefix = {"llm": "llm.", "vision_tower": "vision_tower.vision_tower.", "mm_projector": "mm_projector."}
    found = {prefix[part] + key: shape for part, shapes in expected_tensors(build(read_config(folder))).items()
             for key, shape in shapes.items()}
    assert found == expected
    check(folder)
