"""Where the time goes in a decoder layer, for prefill and decode over sequence length: ``python -m model.profile``.

The paper's first observation (arXiv:2505.14709): the MLP, not attention, takes most of it. Measured for this project's
model and for one layer of LLaMA-2-7B's shape with random weights.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn import functional

from model import checkpoint
from model.config import PRESETS, LayerSizes
from model.profile_plot import write_plot
from model.transformer import Block, Transformer, apply_rope

PARTS = ("mlp", "attention", "projections", "head", "rest")
"""MLP; scores, softmax and weighted values; Q, K, V and output projections; final norm and logits; norms, RoPE, cache,
residual additions."""
PHASES = ("prefill", "decode")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A layer's sizes, as :class:`~model.transformer.Block` wants them."""

    hidden: int
    intermediate: int
    heads: int
    rms_eps: float = 1e-5


LLAMA_7B = Shape(hidden=4096, intermediate=11008, heads=32)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is measured: decoder blocks, and a head (or None where a layer alone is looked at)."""

    name: str
    sizes: LayerSizes
    blocks: list[Block]
    head: Callable[[Tensor], Tensor] | None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Seconds of each of :data:`PARTS` in one pass: ``length`` tokens at once (prefill), or one token after
    ``length`` others (decode); medians over ``repeats``."""

    subject: str
    phase: str
    length: int
    repeats: int
    seconds: dict[str, float]

    @property
    def total(self) -> float:
        """Seconds of all parts."""
        return sum(self.seconds.values())


class Stopwatch:
    """Adds up time per part: the processor's with one thread, so that other programs do not count; else the wall's."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._now = time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        started = self._now()
        yield
        self.seconds[part] += self._now() - started


def own_subject(folder: Path | None) -> Subject:
    """The model in ``folder`` (by default the one shipped), float32; without one its shape with random weights."""
    name = "fastcar-64"
    try:
        _, transformer, _ = checkpoint.load(folder)
    except checkpoint.CheckpointError:
        if folder is not None:
            raise
        transformer, name = Transformer(PRESETS[name]).eval().requires_grad_(False), name + ", random weights"
    return Subject(name=name, sizes=transformer.config, blocks=[cast(Block, block) for block in transformer.blocks],
                   head=transformer.logits)


def layer_subject(shape: Shape, dtype: torch.dtype, seed: int = 0) -> Subject:
    """One layer of ``shape`` with random weights, without a head."""
    with torch.device("meta"):
        block = Block(shape).to(dtype)
    block.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    for parameter in block.parameters():
        if parameter.dim() == 1:
            nn.init.ones_(parameter)
        else:
            nn.init.uniform_(parameter, -0.02, 0.02, generator=generator)
    return Subject(name=f"one layer {shape.hidden}/{shape.intermediate}, random weights, {str(dtype)[6:]}", sizes=shape,
                   blocks=[block.eval().requires_grad_(False)], head=None)


def run_once(subject: Subject, phase: str, length: int, rows: int, seed: int = 0) -> dict[str, float]:
    """Seconds per part of one pass over all blocks, full attention. Inputs are random."""
    first = next(subject.blocks[0].parameters())
    generator = torch.Generator().manual_seed(seed)
    width = subject.sizes.hidden // subject.sizes.heads
    tokens = length if phase == "prefill" else 1

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(first.dtype)

    x, tables = noise(rows, tokens, subject.sizes.hidden), (noise(tokens, width // 2), noise(tokens, width // 2))
    # A cache with room for the new token, as generation has it.
    past = [noise(rows, subject.sizes.heads, length + 1, width) for _ in range(2)] if phase == "decode" else []
    watch = Stopwatch()
    timed_pass(subject, x, tables, past, watch)
    return watch.seconds


def timed_pass(subject: Subject, x: Tensor, tables: tuple[Tensor, Tensor], past: Sequence[Tensor],
               watch: Stopwatch) -> Tensor:
    """Hidden states ``[rows, n, hidden]`` after all blocks, of ``x`` ``[rows, n, hidden]`` with rotary ``tables``.

    ``past``: nothing, and ``x`` is a whole sequence; or keys and values ``[rows, heads, past + 1, head_dim]`` of which
    the last ones are overwritten by those of the one token in ``x``.
    """
    for block in subject.blocks:
        with watch.on("rest"):
            normed = block.input_norm(x)
        with watch.on("projections"):
            q, k, v = block.attention.project_raw(normed)
        with watch.on("rest"):
            q, k = apply_rope(q, tables), apply_rope(k, tables)
            for held, new in zip(past, (k, v)):
                held[:, :, -1:] = new
            keys, values = past if past else (k, v)
        with watch.on("attention"):
            attended = functional.scaled_dot_product_attention(q, keys, values, is_causal=not past)
        with watch.on("projections"):
            projected = block.attention.combine(attended)
        with watch.on("rest"):
            x = x + projected
            normed = block.post_norm(x)
        with watch.on("mlp"):
            y = block.mlp(normed)
        with watch.on("rest"):
            x = x + y
    if subject.head is not None:
        with watch.on("head"):
            subject.head(x[:, -1])
    return x


def measure(subject: Subject, phase: str, length: int, *, rows: int, repeats: int, budget: float) -> Measurement:
    """Median over at most ``repeats`` passes, fewer when they take more than ``budget`` seconds; one warms up."""
    started = time.monotonic()
    run_once(subject, phase, length, rows)
    passes: list[dict[str, float]] = []
    while len(passes) < repeats and (not passes or time.monotonic() - started < budget):
        passes.append(run_once(subject, phase, length, rows))
    return Measurement(subject=subject.name, phase=phase, length=length, repeats=len(passes),
                       seconds={part: median(seconds[part] for seconds in passes) for part in PARTS})


def table(measurements: Sequence[Measurement]) -> str:
    """Milliseconds and share of each part, one line a measurement."""
    lines = [f"{'phase':8}{'length':>7}{'ms':>11}   " + "".join(f"{part:>13}" for part in PARTS)]
    for number, found in enumerate(measurements):
        if number == 0 or measurements[number - 1].subject != found.subject:
            lines.append(found.subject)
        shares = "".join(f"{100 * found.seconds[part] / found.total:11.1f} %" for part in PARTS)
        lines.append(f"{found.phase:8}{found.length:7}{1e3 * found.total:11.3f}   {shares}")
    return "\n".join(lines)


def conditions(rows: int) -> dict[str, Any]:
    """What the figures depend on."""
    threads = torch.get_num_threads()
    return {"rows": rows, "threads": threads, "clock": "processor" if threads == 1 else "wall",
            "torch": torch.__version__,
            "machine": platform.machine(), "processors": os.cpu_count(),
            "load_average_at_start": round(os.getloadavg()[0], 2), "attention": "full, torch's fused kernel"}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m model.profile", description=__doc__.split(":")[0] + ".")
    parser.add_argument("--lengths", type=_lengths, default=(64, 256, 1024, 2048), metavar="N[,N...]",
                        help="tokens (default 64,256,1024,2048; VILA-U has 2048 visual tokens in 8 frames)")
    parser.add_argument("--rows", type=int, default=2, help="rows of the batch (default 2: one guided video)")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="float32", help="of the 7B layer (default float32)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default 1)")
    parser.add_argument("--repeats", type=int, default=9, help="passes of which the median is taken (default 9)")
    parser.add_argument("--budget", type=float, default=20.0, metavar="S",
                        help="seconds after which no further pass is begun (default 20)")
    parser.add_argument("--model", type=Path, metavar="DIR", help="of a trained model (default: the one shipped)")
    parser.add_argument("--no-7b", action="store_true", help="leave the 7B layer out (0.8 GB in float32)")
    parser.add_argument("--out", type=Path, default=Path("build/profile"), metavar="DIR",
                        help="folder of profile.json and profile.png (default build/profile)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    options = parser.parse_args(argv)
    if min(options.rows, options.threads, options.repeats) < 1:
        parser.error("rows, threads and repeats must be at least 1")
    torch.set_num_threads(options.threads)
    state = conditions(options.rows)
    try:
        subjects = [own_subject(options.model)]
        options.out.mkdir(parents=True, exist_ok=True)
    except (checkpoint.CheckpointError, OSError) as error:
        print(f"profile: {error}", file=sys.stderr)
        return 2
    if not options.no_7b:
        subjects.append(layer_subject(LLAMA_7B, DTYPES[options.dtype]))
    work = [(subject, phase, length) for subject in subjects for phase in PHASES for length in options.lengths]
    measurements = []
    with torch.inference_mode(), Progress(console=Console(stderr=True)) as progress:
        for subject, phase, length in progress.track(work, description="measuring"):
            measurements.append(measure(subject, phase, length, rows=options.rows, repeats=options.repeats,
                                        budget=options.budget))
    report = {"conditions": state, "measurements": [asdict(found) for found in measurements]}
    (options.out / "profile.json").write_text(json.dumps(report, indent=2) + "\n")
    write_plot(options.out / "profile.png", measurements, PARTS, PHASES, state)
    print(table(measurements), file=sys.stderr if options.json else sys.stdout)
    print(", ".join(f"{name} {value}" for name, value in state.items()),
          file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps(report))
    return 0


def _lengths(text: str) -> tuple[int, ...]:
    lengths = tuple(int(part) for part in text.split(","))
    if min(lengths) < 1:
        raise argparse.ArgumentTypeError(f"a length must be at least 1, not {text!r}")
    return lengths


if __name__ == "__main__":
    sys.exit(main())
