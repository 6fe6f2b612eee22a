"""Dump a real generation for testbenches: ``python -m model.dump --prompt "..." --out DIR [--gate ...] [--frames 2]``.

The MLPs run on the integer model, so the outputs are what hardware must give, bit for bit. DIR gets two files.

``manifest.json``
    ``format`` (1), ``prompts``, ``seeds``, ``frames``, ``sampling``, ``model`` (sizes, as in config.json),
    ``fingerprint`` of the weights, ``gate`` (``name``, ``source``: ``"mask"`` or ``"tas"``, ``thresholds`` one per
    layer, ``thresholds_fixed`` as the board's THRESHOLD register takes them, else null), ``replay_ratio_eligible``.

``steps.npz``, with S visual steps, L layers, R rows (conditional ones first), H heads, D hidden
    ===============  ==============================  ================================================================
    ``computed``     uint8 ``[S, L, R]``             1 = the row's MLP ran, 0 = it replayed that of step s - stride
    ``eligible``     uint8 ``[S]``                   0 in frame 0, where no row may replay
    ``scores``       float32 ``[S, L, R, H]``        q.k / sqrt(d) per head; 0 where not eligible
    ``scores_fixed`` int32 ``[S, L, R, H]``          the same with 16 fraction bits, as a board takes them
    ``inputs``       float32 ``[S, L, R, D]``        MLP inputs, of replayed rows too
    ``input_codes``  int8 ``[S, L, R, D]``           the same in MXINT8
    ``input_scales`` uint8 ``[S, L, R, D / 32]``     and their scale bytes
    ``outputs``      uint16 ``[S, L, R, D]``         BF16 words that the residual stream received, replayed or computed
    ``codes``        int64 ``[videos, frames, T]``   visual codes of the videos
    ===============  ==============================  ================================================================

The weights are not in it: ``model.engine.quantised_weights`` makes them of the model with that fingerprint.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from model import checkpoint, world
from model.config import ModelConfig
from model.engine import IntegerMlp
from model.gates import THRESHOLD_GATES, Decision, DenseGate, Gate, RandomGate, ThresholdGate, tas_fixed
from model.generate import LayerStep, generate
from model.mx import quantize
from model.presets import PresetError, fingerprint, load_presets
from model.transformer import Transformer
from model.vocabulary import PromptError

FORMAT = 1
MANIFEST, STEPS = "manifest.json", "steps.npz"
GATES = ("dense", "tas", "change", "random")


class DumpError(Exception):
    """A dump that cannot be written or read; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Dump:
    """A dump in memory: ``manifest`` as in manifest.json, ``arrays`` as in steps.npz."""

    manifest: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def config(self) -> ModelConfig:
        """Sizes of the model that made it."""
        return ModelConfig.from_json(json.dumps(self.manifest["model"]))

    def save(self, folder: Path) -> None:
        """Write both files into ``folder``, which is made if need be. Raises :exc:`DumpError`."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / MANIFEST).write_text(json.dumps(self.manifest, indent=2) + "\n")
            np.savez_compressed(folder / STEPS, **cast(dict[str, Any], self.arrays))
        except OSError as error:
            raise DumpError(f"cannot write the dump into {folder}: {error}") from error


def load_dump(folder: Path) -> Dump:
    """Read what :meth:`Dump.save` wrote. Raises :exc:`DumpError`."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        with np.load(folder / STEPS) as arrays:
            dump = Dump(manifest=manifest, arrays=dict(arrays))
    except (OSError, ValueError, BadZipFile) as error:
        raise DumpError(f"{folder} holds no readable dump ({error}); write one with python -m model.dump") from error
    if manifest.get("format") != FORMAT:
        raise DumpError(f"{folder} has dump format {manifest.get('format')!r}, this program reads {FORMAT}; "
                        "write it anew with python -m model.dump")
    return dump


def record(transformer: Transformer, prompts: Sequence[str], seeds: Sequence[int], *, gate: Gate,
           frames: int) -> Dump:
    """Generate with the integer model and keep everything."""
    config = transformer.config
    kept: dict[str, list[np.ndarray]] = {name: [] for name in ("computed", "scores", "inputs", "outputs")}
    decisions: dict[int, Decision] = {}

    def observe(item: LayerStep) -> None:
        rows = len(item.x)
        kept["computed"].append(item.result.computed.numpy().astype(np.uint8))
        kept["scores"].append(np.zeros((rows, config.heads), np.float32) if item.scores is None
                              else item.scores.numpy().copy())
        kept["inputs"].append(item.x.numpy().copy())
        kept["outputs"].append(bf16_words(item.result.y))
        if item.step.eligible:
            decisions[item.layer] = item.decision

    result = generate(transformer, prompts, seeds, frames=frames, gate=gate, engine=IntegerMlp.of(transformer),
                      observer=observe)
    arrays = {name: np.stack(values).reshape(-1, config.layers, *values[0].shape) for name, values in kept.items()}
    arrays["scores_fixed"] = tas_fixed(arrays["scores"])
    arrays["input_codes"], arrays["input_scales"] = quantize(arrays["inputs"])
    steps = np.arange(len(arrays["computed"]))
    arrays["eligible"] = (steps >= config.layout.stride).astype(np.uint8)
    arrays["codes"] = result.codes.numpy()
    rules = [decisions[layer].rule for layer in range(config.layers)] if decisions else []
    fixed = [rule.tas_threshold for rule in rules if rule is not None and rule.tas_scores is not None]
    thresholds = gate.per_layer if fixed and isinstance(gate, ThresholdGate) else None
    manifest = {
        "format": FORMAT, "prompts": list(prompts), "seeds": list(seeds), "frames": frames,
        "sampling": dataclasses.asdict(config.sampling), "model": json.loads(config.to_json()),
        "fingerprint": fingerprint(transformer),
        "gate": {"name": gate.name, "source": "tas" if thresholds else "mask",
                 "thresholds": [t if math.isfinite(t) else str(t) for t in thresholds] if thresholds else None,
                 "thresholds_fixed": fixed if thresholds else None},
        "replay_ratio_eligible": result.statistics.replay_ratio_eligible,
    }
    return Dump(manifest=manifest, arrays=arrays)


def bf16_words(values: Tensor) -> np.ndarray:
    """Words uint16 of float32 ``values`` that are BF16 exactly, as the integer engine's outputs are."""
    return (np.ascontiguousarray(values.numpy()).view(np.uint32) >> 16).astype(np.uint16)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m model.dump", description=__doc__.split("\n")[0])
    parser.add_argument("--prompt", required=True, action="append", metavar="TEXT", help="several times for several")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="output folder")
    parser.add_argument("--frames", type=int, default=2, metavar="N", help="frames of each video (default 2)")
    parser.add_argument("--seed", type=int, default=0, help="of the first video, +1 for each further one (default 0)")
    parser.add_argument("--gate", choices=GATES, default="tas", help="replay gate (default tas)")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--threshold", type=float, metavar="T", help="of the gate tas (a raw logit) or change")
    amount.add_argument("--replay-ratio", type=float, metavar="R",
                        help="share of the steps after frame 0, by calibrated thresholds (default 0.5)")
    parser.add_argument("--joint-pairs", action="store_true", help="guidance pairs decide together")
    parser.add_argument("--model", type=Path, metavar="DIR", help="folder of the model (default: the one shipped)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    options = parser.parse_args(argv)
    if options.frames < 1 or options.seed < 0:
        parser.error(f"frames must be at least 1 and seed at least 0, not {options.frames} and {options.seed}")
    if options.threshold is not None and math.isnan(options.threshold):
        parser.error("the threshold is NaN; give a number")
    if options.replay_ratio is not None and not 0 <= options.replay_ratio <= 1:
        parser.error(f"replay-ratio must be in 0..1, not {options.replay_ratio}")
    torch.set_num_threads(1)  # few rows: threads cost more than they give
    try:
        for prompt in options.prompt:
            world.parse(prompt)
        _, transformer, _ = checkpoint.load(options.model)
        gate = _gate(options, transformer)
        seeds = [options.seed + number for number in range(len(options.prompt))]
        dump = record(transformer, options.prompt, seeds, gate=gate, frames=options.frames)
        dump.save(options.out)
    except (DumpError, PresetError, PromptError, checkpoint.CheckpointError) as error:
        print(f"dump: {error}", file=sys.stderr)
        return 2
    summary = {"out": str(options.out), "steps": len(dump.arrays["computed"]), "rows": dump.arrays["computed"].shape[2],
               "layers": transformer.config.layers, "gate": dump.manifest["gate"]["name"],
               "replay_ratio_eligible": dump.manifest["replay_ratio_eligible"]}
    print(json.dumps(summary) if options.json else
          "{steps} steps of {layers} layers and {rows} rows, {replay_ratio_eligible:.1%} of the eligible ones replay, "
          "in {out}".format(**summary))
    return 0


def _gate(options: argparse.Namespace, transformer: Transformer) -> Gate:
    ratio = 0.5 if options.replay_ratio is None else options.replay_ratio
    if options.gate == "dense":
        return DenseGate()
    if options.gate == "random":
        return RandomGate(ratio, options.seed, joint_pairs=options.joint_pairs)
    threshold = options.threshold
    if threshold is None:
        presets = load_presets(transformer, options.model)
        threshold = presets.curve(options.gate, options.joint_pairs).threshold(ratio)
    return THRESHOLD_GATES[options.gate](threshold, joint_pairs=options.joint_pairs)


if __name__ == "__main__":
    sys.exit(main())
