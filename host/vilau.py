"""One ``generate`` command with a VILA-U model, all of it in PyTorch."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from host.gate import build_gate
from host.output import OutputFolder
from host.plan import dry_run
from host.progress import ProgressBar
from host.settings import Settings, SettingsError
from host.stats import tokens_hash, versions
from model.checkpoint import CheckpointError
from model.gates import DenseGate, Gate
from model.vilau.config import read_config
from model.vilau.loader import check
from model.vilau.pipeline import Pipeline
from model.vilau.plan import DTYPES, MemoryPlan, plan
from model.vilau.prompt import Tokenizer
from model.vilau.sampling import CodeSampling


def run(settings: Settings, console: Console) -> dict[str, Any]:
    """Generate and write everything; returns the content of stats.json, or the plan of a dry run.

    Names and shapes of all tensors are compared, and memory is counted, before anything is loaded.

    Raises
    ------
    SettingsError, PromptError, CheckpointError, OutputError
    """
    if settings.model is None:
        raise ValueError("a VILA-U model has no default folder; set model")
    device = _device(settings.device)
    if settings.verify:
        raise SettingsError("verify compares a board with the golden model, and a VILA-U model uses no board; "
                            "leave --verify out")
    videos, sampling = settings.videos(), _sampling(settings)
    config = read_config(settings.model)
    gate, gate_report = _gate(settings, config.llm.layers)
    check(settings.model)
    needed = _plan(settings, settings.model, len(videos), sampling)
    if settings.dry_run:
        return dry_run(needed)
    if not needed.fits:
        raise CheckpointError("not enough memory: " + needed.text().replace("\n", "; "))
    folder = OutputFolder(settings.out, len(videos))
    console.print(f"loading {needed.weight_bytes >> 20} MiB of weights")
    pipeline = Pipeline(settings.model, device=device, dtype=DTYPES[settings.dtype])
    started = time.monotonic()
    with ProgressBar(console, needed.frames, len(videos)) as bar:
        result = pipeline.generate([p for p, _ in videos], [s for _, s in videos], frames=needed.frames,
                                   sampling=sampling, gate=gate, window=settings.window, positions=settings.positions,
                                   on_step=bar.update)
    seconds = time.monotonic() - started
    codes = result.generation.codes
    done = codes.shape[1]
    message = "complete" if result.generation.complete else f"interrupted after {done} of {needed.frames} frames"
    if not result.generation.complete:
        console.print(message)
    stats: dict[str, Any] = {
        "complete": result.generation.complete, "message": message, "settings": settings.to_dict(),
        "sampling": dataclasses.asdict(sampling), "videos": [{"prompt": p, "seed": s} for p, s in videos],
        "frames": done, "versions": versions(), "memory": needed.to_dict(), "gate": gate_report,
        "tokens_sha256": tokens_hash(codes), "wall_seconds": seconds,
        "tokens_per_s": codes[..., 0].numel() / seconds,
        **result.summary(),
        "provenance": {"replay_*, mlp_*": "counted in the PyTorch model; 'eligible' leaves frame 0 out",
                       "tokens_per_s, wall_seconds": "wall clock of this machine, loading left out, decoding included"},
    }
    folder.write_tokens(codes.numpy())
    if done:
        folder.write_videos([_pictures(pixels) for pixels in result.pixels], settings.fps, settings.upscale)
    stats["files"] = folder.results()
    folder.write_stats(stats)
    return stats


def _plan(settings: Settings, folder: Path, videos: int, sampling: CodeSampling) -> MemoryPlan:
    config = read_config(folder)
    prompts: list[str | None] = [prompt for prompt, _ in settings.videos()]
    guided = sampling.cfg_scale != 1
    ids, _ = Tokenizer(folder / "llm", config.llm.vocab).batch([*prompts, None] if guided else prompts)
    return plan(config, rows=videos * (2 if guided else 1), prompt_tokens=ids.shape[1], frames=settings.frames,
                dtype=DTYPES[settings.dtype], device=settings.device, window=settings.window,
                positions=settings.positions, reference_inputs=settings.gate == "change" and not settings.dense)


def _sampling(settings: Settings) -> CodeSampling:
    given = {name: getattr(settings, name) for name in ("cfg_scale", "temperature", "top_k", "top_p")}
    return CodeSampling(**{name: value for name, value in given.items() if value is not None})


def _gate(settings: Settings, layers: int) -> tuple[Gate, dict[str, object]]:
    if settings.dense:
        return DenseGate(), {"name": "dense"}
    if settings.threshold is None:
        raise SettingsError("replay ratios are calibrated for this project's own model only; give --threshold T "
                            "(with --gate tas --variant released, T = -4 is the authors' example), or --dense")
    return build_gate(settings, settings.threshold, layers, quantised=False)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingsError(f"device {name!r} is none of torch's; give cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"device {name!r}: torch finds no CUDA here; leave --device out to use the CPU")
    return device


def _pictures(pixels: torch.Tensor) -> np.ndarray:
    """uint8 ``[frames, h, w, 3]`` of ``pixels`` ``[frames, 3, h, w]`` in 0..255."""
    return pixels.round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
