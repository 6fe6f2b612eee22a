"""Load a VILA-U folder: ``llm/``, ``vision_tower/``, ``mm_projector/``, each with its configuration and weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from model.checkpoint import CheckpointError
from model.vilau.config import VilaConfig, read_config
from model.vilau.llm import published_name
from model.vilau.model import VilaU
from model.vilau.refusal import refuse_other_kinds
from model.vilau.weights import StoredTensor, stored_tensors

FOLDERS = ("llm", "vision_tower", "mm_projector")
UNUSED = ("llm.lm_head.", "vision_tower.rqvaesiglip.siglip_model.text_model.",
          "vision_tower.rqvaesiglip.siglip_model.vision_model.head.",
          "vision_tower.rqvaesiglip.siglip_model.vision_model.post_layernorm.",
          "vision_tower.rqvaesiglip.siglip_model.logit_", "vision_tower.rqvaesiglip.logit_")
"""Prefixes (with the folder) of tensors that no generation needs: checked, but not loaded."""
UNUSED_ENDINGS = (".cluster_size_ema", ".embed_ema")
OLD_BUFFERS = (".rotary_emb.inv_freq",)
"""Endings of tensors that old releases store and that follow from the configuration."""


def is_vilau(folder: Path) -> bool:
    """Whether ``folder`` looks like a VILA-U checkpoint and not like another model."""
    try:
        kind = json.loads((folder / "config.json").read_text()).get("model_type")
    except (OSError, ValueError, AttributeError):
        return False
    return kind == "vila_u_llama" or all((folder / name).is_dir() for name in FOLDERS)


def build(config: VilaConfig) -> VilaU:
    """The model without memory for its weights (on the meta device)."""
    with torch.device("meta"):
        return VilaU(config).eval().requires_grad_(False)


def expected_tensors(model: VilaU) -> dict[str, dict[str, tuple[int, ...]]]:
    """Shapes that the files must have: by folder, by published name."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {folder: {} for folder in FOLDERS}
    for name, tensor in model.state_dict().items():
        folder, key = _published(name)
        shapes[folder][key] = tuple(tensor.shape)
    return shapes


def published_tensors(model: VilaU) -> Iterator[tuple[str, str, Tensor]]:
    """Folder, published name and tensor of every parameter and buffer; one that has several names comes once."""
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield *_published(name), tensor


def is_used(folder: str, key: str) -> bool:
    """Whether generation (or the image encoder) needs tensor ``key`` of ``folder``."""
    name = f"{folder}.{key}"
    return not name.startswith(UNUSED) and not name.endswith(UNUSED_ENDINGS)


def load(folder: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32,
         strict: bool = True) -> VilaU:
    """Read a model for inference. Only what generation needs takes memory; the rest stays on the meta device.

    Parameters
    ----------
    strict : :class:`bool`
        Whether extra tensors, and missing ones that generation does not need, are errors too.

    Raises
    ------
    CheckpointError
        Not a VILA-U model; a file is missing or damaged; tensors are missing, extra or have another shape than the
        configuration says: they are named.
    """
    model, stored = _checked(Path(folder), strict)
    state: dict[str, Tensor] = {}
    for name in model.state_dict():
        part, key = _published(name)
        if key in stored[part] and is_used(part, key):
            state[name] = stored[part][key].read().to(device=device, dtype=dtype)
    # Tensors of a shared codebook come once; assigning one name assigns the module that all names share.
    model.load_state_dict(state, strict=False, assign=True)
    return model.requires_grad_(False)


def check(folder: Path, *, strict: bool = True) -> None:
    """Compare names and shapes in the files with the configuration, without loading. Raises as :func:`load` does."""
    _checked(Path(folder), strict)


def _checked(folder: Path, strict: bool) -> tuple[VilaU, dict[str, dict[str, StoredTensor]]]:
    """The model without its weights, and the tensors in its files, by folder, which fit it."""
    refuse_other_kinds(folder)
    model = build(read_config(folder))
    aliases = _aliases(model)
    stored = {part: stored_tensors(folder / part) for part in FOLDERS}
    problems = [problem for part, shapes in expected_tensors(model).items()
                for problem in _differences(part, shapes, stored[part], aliases, strict)]
    if problems:
        raise CheckpointError(f"{folder} does not fit its configuration: " + "; ".join(problems))
    return model, stored


def _published(name: str) -> tuple[str, str]:
    """Folder, and name inside it, of parameter ``name`` of :class:`VilaU`."""
    folder, _, key = name.partition(".")
    return folder, published_name(key) if folder == "llm" else key


def _aliases(model: nn.Module) -> dict[tuple[str, str], set[tuple[str, str]]]:
    """For every tensor all names that it has, its own included."""
    names: dict[int, set[tuple[str, str]]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), set()).add(_published(name))
    return {name: group for group in names.values() for name in group}


def _differences(folder: str, shapes: dict[str, tuple[int, ...]], stored: dict[str, StoredTensor],
                 aliases: dict[tuple[str, str], set[tuple[str, str]]], strict: bool) -> list[str]:
    """What is wrong with the tensors of one folder, each kind one text."""
    missing = [key for key in shapes if (strict or is_used(folder, key))
               and not any(name in stored for _, name in aliases[folder, key])]
    extra = [key for key in stored if key not in shapes and not key.endswith(OLD_BUFFERS)] if strict else []
    wrong = [f"{key} has shape {list(stored[key].shape)} instead of {list(shape)}"
             for key, shape in shapes.items() if key in stored and stored[key].shape != shape]
    return [f"{folder}: {_listed(items, what)}" for items, what in
            ((missing, "missing"), (extra, "not expected"), (wrong, "wrong shapes")) if items]


def _listed(items: list[str], what: str, most: int = 12) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return f"{len(items)} {what}: {', '.join(sorted(items)[:most])}{more}"
