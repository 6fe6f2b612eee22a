"""Dry run: what a generation would hold, without generating."""

from typing import Any

from torch import nn

from model.config import ModelConfig
from model.mx import BLOCK
from model.transformer import Transformer
from model.vilau.plan import MemoryPlan, available

FLOAT_BYTES = 4


def own_plan(config: ModelConfig, transformer: Transformer, visual: nn.Module, *, rows: int, frames: int,
             window: int | None, positions: str, reference_inputs: bool) -> MemoryPlan:
    """The plan of a model of this project, float32. ``rows``: videos, twice as many under guidance.

    Outputs that are replayed are counted though a board holds them in its own memory.
    """
    layout = config.layout
    steps = frames * layout.stride
    kept = config.window if window is None else min(window, steps)
    per_token = config.layers * rows * config.hidden * FLOAT_BYTES
    replayed = per_token * layout.stride
    keys = kept + layout.prelude * (2 if positions == "cache" else 1)
    recent = layout.stride + 1 if kept <= layout.stride else 0
    parameters = {name: sum(parameter.numel() for parameter in module.parameters())
                  for name, module in (("transformer", transformer), ("visual", visual))}
    held = [tensor for module in (transformer, visual) for tensor in module.state_dict().values()]
    references = replayed // FLOAT_BYTES * (BLOCK + 1) // BLOCK if reference_inputs else 0  # codes and scales
    return MemoryPlan(
        parameters=parameters, parameters_used=sum(parameters.values()), rows=rows, prompt_tokens=layout.prelude,
        frames=frames, weight_bytes=sum(tensor.numel() * tensor.element_size() for tensor in held),
        kv_bytes=per_token * (keys + recent + kept + layout.prelude),
        replay_bytes=replayed + references, available_bytes=available("cpu"))


def dry_run(plan: MemoryPlan) -> dict[str, Any]:
    """The plan as a report of a command."""
    return {"dry_run": True, "text": plan.text(), **plan.to_dict()}
