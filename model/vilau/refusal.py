"""Models that replay does not fit, and why: the loader names the reason instead of failing on a tensor name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from model.checkpoint import CheckpointError

REASONS = {
    "diffusion": "it is a diffusion model: every pass refines all tokens at once, so that there is no cached output "
                 "of the same token one frame earlier",
    "next-scale": "it predicts the next scale: a pass yields a whole picture of one size, and tokens of different "
                  "sizes have no aligned predecessor",
    "masked": "it decodes masked tokens in parallel, with attention in both directions: there is no key-value cache, "
              "and no fixed stride between frames",
}
"""Family -> why replay of MLP outputs along the frame stride does not apply."""
MARKS = {
    "diffusion": ("diffusion", "unet", "transformer3d", "flowmatch", "cogvideo", "hunyuanvideo", "opensora", "mochi"),
    "next-scale": ("infinity", "visual_autoregressive", "visualautoregressive", "next_scale", "switti"),
    "masked": ("maskgit", "magvit", "amused", "phenaki", "showo", "show_o", "show-o", "meissonic"),
}
"""Family -> parts of class names or model types that give it away, in lower case."""


def family(folder: Path) -> str | None:
    """Family of :data:`REASONS` that the configuration files of ``folder`` name, or None."""
    names = []
    for file in ("model_index.json", "config.json"):
        fields = _fields(folder / file)
        architectures = fields.get("architectures")
        names += [fields.get("_class_name"), fields.get("model_type"),
                  *(architectures if isinstance(architectures, list) else [])]
    if _fields(folder / "model_index.json"):
        return "masked" if any(_marked(name, "masked") for name in names) else "diffusion"
    return next((kind for kind in MARKS if any(_marked(name, kind) for name in names)), None)


def refuse_other_kinds(folder: Path) -> None:
    """Raise :exc:`~model.checkpoint.CheckpointError` with the reason if ``folder`` holds a model that cannot fit."""
    kind = family(folder)
    if kind is not None:
        raise CheckpointError(f"{folder} cannot be used: {REASONS[kind]}; a decoder that generates frame after frame, "
                              "token after token, is needed (see docs/models.md)")


def _marked(name: Any, kind: str) -> bool:
    return isinstance(name, str) and any(mark in name.lower() for mark in MARKS[kind])


def _fields(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}
