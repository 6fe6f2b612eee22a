"""What replay did, as text."""

from __future__ import annotations

import numpy as np
from torch import nn

from model.hf.config import ReplayConfig
from model.hf.hook import controller
from model.hf.statistics import QUANTILES, ReplayStatistics

BRANCHES = {1: ("all rows",), 2: ("conditional", "unconditional")}
COMPARED = {"paper": "score", "cosine": "cosine score", "change": "relative change"}


def replay_summary(model: nn.Module) -> str:
    """Replay since it was enabled: ratios per layer, frame and branch, ages, quantiles, MLP calls, memory.

    Raises :exc:`ReplayError` if replay is not enabled.
    """
    found = controller(model)
    return summary_text(found.config, found.thresholds, found.measured())


def summary_text(config: ReplayConfig, thresholds: tuple[float, ...], statistics: ReplayStatistics) -> str:
    """The summary of ``statistics``; ``thresholds`` are those of the participating layers."""
    steps, eligible = int(statistics.total("row_steps")), int(statistics.total("eligible"))
    replayed = int(statistics.total("replayed"))
    lines = [f"replay ({config.variant}): {statistics.sequence_count} sequences, {steps} row steps, {eligible} of them "
             f"eligible, {replayed} replayed: {_share(replayed, eligible)} of the eligible, {_share(replayed, steps)} "
             "of all"]
    if not replayed:
        lines.append(_why_none(config, thresholds, statistics, steps, eligible))
    calls = statistics.mlp_calls + statistics.mlp_skips
    lines += [f"MLP calls: {statistics.mlp_calls} made, {statistics.mlp_skips} saved of {calls}; "
              f"{statistics.rows_computed} rows computed of {steps}",
              f"replay memory: {sum(statistics.memory_bytes.values())} bytes now "
              f"({', '.join(f'{kind} {size}' for kind, size in statistics.memory_bytes.items())}), "
              f"{statistics.peak_memory_bytes} at most"]
    if not steps:
        return "\n".join(lines)
    for name, part in zip(BRANCHES[statistics.branches], statistics.ratio(axes=(0, 1))):
        lines.append(f"{name}: {part:.1%} of the eligible replayed")
    if len(statistics.sequences) > 1:
        lines.append("sequences, latest last: " + ", ".join(
            _share(one.replayed, one.eligible) for one in list(statistics.sequences)[-8:]))
    lines.append(f"{'layer':>5}  eligible  replayed  age mean  age max  {COMPARED[config.variant]} quantiles "
                 + " ".join(f"{level:.0%}" for level in QUANTILES))
    lines += _rows(statistics, statistics.layers, (0, 2), [
        " ".join(f"{value:.3f}" for value in np.quantile(sample.values, QUANTILES)) if sample.count else "-"
        for sample in statistics.samples])
    lines.append(f"{'frame':>5}  eligible  replayed  age mean  age max")
    lines += _rows(statistics, range(len(statistics.frames)), (1, 2), [""] * len(statistics.frames))
    return "\n".join(lines)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _rows(statistics: ReplayStatistics, names: range | tuple[int, ...], axes: tuple[int, int],
          ends: list[str]) -> list[str]:
    ages = np.stack([frame.age_max for frame in statistics.frames]).max(axis=axes)
    columns = [statistics.total(name, axes) for name in ("eligible", "replayed", "age_sum")]
    return [f"{name:5d}  {eligible:8d}  {_share(replayed, eligible):>8}  {age / max(replayed, 1):8.2f}  {oldest:7d}  "
            f"{end}".rstrip() for name, eligible, replayed, age, oldest, end in zip(names, *columns, ages, ends)]


def _why_none(config: ReplayConfig, thresholds: tuple[float, ...], statistics: ReplayStatistics, steps: int,
              eligible: int) -> str:
    if not steps:
        return "0 replays: no single-token step was made in a frame; replay decides in generation with a cache"
    if not eligible:
        return (f"0 replays: the generations ended before a step could replay; {config.warmup_frames} warm-up frames "
                f"of stride {config.stride} come first")
    what = COMPARED[config.variant]
    if config.variant == "change":
        missed = all(t < s.least for t, s in zip(thresholds, statistics.samples))
        side, extreme = "below", f"min {min(s.least for s in statistics.samples):.4g}"
    else:
        missed = all(t > s.most for t, s in zip(thresholds, statistics.samples))
        side, extreme = "above", f"max {max(s.most for s in statistics.samples):.4g}"
    symbol = "θ" if config.variant == "change" else "τ"
    if missed and len(set(thresholds)) == 1:
        return f"0 replays: {symbol} = {thresholds[0]} is {side} every {what} seen ({extreme})"
    if missed:
        return f"0 replays: every layer's {symbol} is {side} every {what} it saw ({extreme})"
    return f"0 replays: some {what}s pass the threshold, but groups={config.groups!r} or max_consecutive forbid it"
