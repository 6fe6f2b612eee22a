"""Memory that a generation takes, before anything is loaded: ``python -m model.vilau.plan DIR --prompt TEXT``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from model.checkpoint import CheckpointError
from model.vilau.config import VilaConfig, read_config
from model.vilau.loader import FOLDERS, build, check, is_used, published_tensors
from model.vilau.prompt import Tokenizer
from model.vilau.sampling import CodeSampling
from model.vocabulary import PromptError

MIB = 1 << 20
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """What is held, in bytes but for the counts.

    Parameters
    ----------
    parameters : stored parameters per folder; ``parameters_used`` of them are loaded
    weight_bytes : the loaded ones
    kv_bytes : keys and values of the prompt and of the visual tokens in the window; where the window is shorter than a
        frame, also the keys of one frame that the temporal attention score needs
    replay_bytes : one frame of MLP outputs per layer and row, and of reference inputs where the gate keeps them
    available_bytes : free memory of the device now
    """

    parameters: dict[str, int]
    parameters_used: int
    rows: int
    prompt_tokens: int
    frames: int
    weight_bytes: int
    kv_bytes: int
    replay_bytes: int
    available_bytes: int

    @property
    def total_bytes(self) -> int:
        """Everything held; intermediate values come on top."""
        return self.weight_bytes + self.kv_bytes + self.replay_bytes

    @property
    def fits(self) -> bool:
        """Whether there is room, with a tenth of it left for intermediate values."""
        return self.total_bytes <= 0.9 * self.available_bytes

    def text(self) -> str:
        """The plan for people."""
        stored = sum(self.parameters.values())
        lines = [f"{stored:,} parameters ({', '.join(f'{name} {n:,}' for name, n in self.parameters.items())}), "
                 f"{self.parameters_used:,} of them loaded",
                 f"{self.rows} rows, {self.prompt_tokens} prompt tokens, {self.frames} frames"]
        lines += [f"{label:16} {size / MIB:12,.1f} MiB" for label, size in (
            ("weights", self.weight_bytes), ("keys and values", self.kv_bytes), ("replay", self.replay_bytes),
            ("together", self.total_bytes), ("available", self.available_bytes))]
        return "\n".join([*lines, "it fits" if self.fits else
                          "it does not fit (a tenth is kept for intermediate values): a narrower --dtype, fewer "
                          "videos, another device, or a --window help"])

    def to_dict(self) -> dict[str, object]:
        """The plan as JSON-ready values."""
        return asdict(self) | {"total_bytes": self.total_bytes, "fits": self.fits}


def plan(config: VilaConfig, *, rows: int, prompt_tokens: int, frames: int | None = None,
         dtype: torch.dtype = torch.float32, device: str = "cpu", window: int | None = None,
         positions: str = "sequence", reference_inputs: bool = False) -> MemoryPlan:
    """The plan of one generation.

    Parameters
    ----------
    rows : prompts, twice as many under guidance
    window : visual tokens attended to, by default all
    positions : of the prompt; ``"cache"`` holds its keys twice
    reference_inputs : whether the gate keeps MLP inputs (the change gate does)

    Raises
    ------
    ValueError
        A number below 1.
    """
    frames = config.frames if frames is None else frames
    for name, value in (("rows", rows), ("prompt_tokens", prompt_tokens), ("frames", frames), ("window", window)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, not {value!r}")
    model = build(config)
    parameters = dict.fromkeys(FOLDERS, 0)
    used = 0
    for folder, key, tensor in published_tensors(model):
        parameters[folder] += tensor.numel() if isinstance(tensor, nn.Parameter) else 0
        used += tensor.numel() if is_used(folder, key) else 0
    llm, element = config.llm, torch.empty(0, dtype=dtype).element_size()
    stride, steps = config.tokens_per_frame, frames * config.tokens_per_frame
    kept = min(window or steps, steps)
    per_token = llm.layers * rows * llm.hidden * element
    recent = stride + 1 if kept <= stride else 0
    return MemoryPlan(
        parameters=parameters, parameters_used=used, rows=rows, prompt_tokens=prompt_tokens, frames=frames,
        weight_bytes=used * element,
        kv_bytes=per_token * (2 * (prompt_tokens + kept) + recent + prompt_tokens * (positions == "cache")),
        replay_bytes=per_token * stride * (2 if reference_inputs else 1), available_bytes=available(device))


def dry_run(folder: Path, prompts: Sequence[str], *, frames: int | None = None,
            cfg_scale: float = CodeSampling.cfg_scale, dtype: torch.dtype = torch.float32, device: str = "cpu",
            window: int | None = None, positions: str = "sequence", reference_inputs: bool = False) -> MemoryPlan:
    """The plan of generating ``prompts`` with the model in ``folder``, whose files are compared with its configuration.

    No weight is loaded. Arguments as :func:`plan` has them; a ``cfg_scale`` of 1 leaves the unconditional rows out.

    Raises
    ------
    CheckpointError
        As :func:`model.vilau.loader.load` does.
    PromptError, ValueError
        A prompt that cannot be used; a number below 1.
    """
    check(folder)
    config = read_config(folder)
    guided = cfg_scale != 1
    ids, _ = Tokenizer(folder / "llm", config.llm.vocab).batch([*prompts, None] if guided else prompts)
    return plan(config, rows=len(prompts) * (1 + guided), prompt_tokens=ids.shape[1], frames=frames, dtype=dtype,
                device=device, window=window, positions=positions, reference_inputs=reference_inputs)


def available(device: str) -> int:
    """Free memory of ``device`` in bytes; a limit of the process group counts."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(torch.device(device))[0]
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        free = min(free, limit - int((group / "memory.current").read_text()))
    except (OSError, ValueError, StopIteration):
        pass  # other systems, and no limit ("max"): what is known so far is the answer
    return max(free, 0)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m model.vilau.plan", description=__doc__.split(":")[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="VILA-U folder")
    parser.add_argument("--prompt", action="append", required=True, help="several times for several videos")
    parser.add_argument("--frames", type=int, help="frames of a video (default: the model's)")
    parser.add_argument("--no-guidance", action="store_true", help="leave out the unconditional rows")
    parser.add_argument("--window", type=int, help="visual tokens attended to (default: all)")
    parser.add_argument("--gate", choices=("tas", "change"), default="tas", help="default: tas")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="float32", help="default: float32")
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    options = parser.parse_args(argv)
    try:
        found = dry_run(options.folder, options.prompt, frames=options.frames, dtype=DTYPES[options.dtype],
                        cfg_scale=1 if options.no_guidance else CodeSampling.cfg_scale, device=options.device,
                        window=options.window, reference_inputs=options.gate == "change")
    except (CheckpointError, PromptError, ValueError, RuntimeError) as error:
        print(f"plan: {error}", file=sys.stderr)
        return 2
    print(found.text(), file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps(found.to_dict()))
    return 0 if found.fits else 1


if __name__ == "__main__":
    sys.exit(main())
