"""Conformance with what the authors' generation code produced from VILA-U checkpoints.

``<name>_outputs.npz`` holds the outputs, the folder ``<name>`` beside it the checkpoint. Prompts, run names,
thresholds and seeds come from the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.checkpoint import CheckpointError
from model.conformance_llm import Arrays, RunResult, largest_difference, thresholds_of
from model.gates import TasGate, temporal_scores
from model.vilau.generate import TokenStep, VilaGeneration, generate
from model.vilau.llm import LlamaLayerStep
from model.vilau.loader import load
from model.vilau.model import VilaU
from model.vilau.prompt import Tokenizer
from model.vilau.sampling import CodeSampling, SharedDraws, probabilities

ENDING = "_outputs"
TOLERANCE = 1e-4
"""Largest allowed difference of everything in a file, but for frames."""
FRAME_TOLERANCE = {np.dtype(np.float32): 1e-3, np.dtype(np.float16): 0.07}
"""Largest allowed difference of pixels in 0..255, by the precision they are stored in."""


def check_vilau(path: Path, arrays: Arrays, on_step: Callable[[int, int], None] | None = None) -> list[RunResult]:
    """Load the checkpoint beside ``path``, repeat every run and compare everything stored.

    ``on_step`` is called with the visual tokens done and in all.

    Raises
    ------
    ValueError
        There is no checkpoint, it cannot be loaded, or an array is missing.
    """
    folder = path.with_name(path.stem.removesuffix(ENDING))
    if folder == path.with_suffix("") or not folder.is_dir():
        raise ValueError(f"the checkpoint folder {folder.name} is not beside {path.name}; vectors of this kind are "
                         f"named <folder>{ENDING}.npz")
    try:
        model = load(folder)
        tokenizer = Tokenizer(folder / "llm", model.config.llm.vocab)
        meta = json.loads(bytes(arrays["meta_json"]))
        results = [check_parts(path.name, arrays, model)] if "encode/pixel_values" in arrays else []
        for run in meta["runs"]:
            results.append(check_run(path.name, run, meta, arrays, model, tokenizer, on_step))
        if "image_greedy" in meta:
            results.append(check_image(path.name, meta, arrays, model, tokenizer))
        return results
    except CheckpointError as error:
        raise ValueError(str(error)) from error
    except KeyError as error:
        raise ValueError(f"{path.name} lacks an array or field: {error}") from error


class _Worst:
    """The largest error seen and where; an error counts in units of what is allowed there."""

    def __init__(self) -> None:
        self.error, self.allowed, self.where = 0.0, TOLERANCE, ""

    def add(self, where: str, got: Tensor | np.ndarray, expected: np.ndarray, allowed: float = TOLERANCE) -> None:
        values = got.numpy() if isinstance(got, Tensor) else got
        if values.shape != expected.shape:
            raise ValueError(f"{where} has shape {list(expected.shape)}, not {list(values.shape)}")
        error = largest_difference(values, expected)
        if error / allowed > self.error / self.allowed or not self.where:
            self.error, self.allowed, self.where = error, allowed, where


class _Record:
    """What is compared of one generation."""

    def __init__(self, layers: int, steps: int, rows: int):
        self.scores = torch.full((layers, steps - 1, rows), torch.nan)
        self.replayed = torch.zeros(layers, steps - 1, rows, dtype=torch.bool)
        self.hidden: list[Tensor] = []
        self.inputs: list[Tensor] = []
        self.logits: list[Tensor] = []

    def layer(self, item: LlamaLayerStep) -> None:
        at = item.layer, item.step.number
        self.replayed[at] = ~item.result.computed
        if item.layer == 0:
            self.inputs.append(item.layer_in)
        if item.aligned_key is not None:
            self.scores[at] = temporal_scores("released", item.raw_query, item.query, item.aligned_key).mean(dim=1)

    def token(self, item: TokenStep) -> None:
        self.hidden.append(item.hidden)
        self.logits.append(item.logits)


def check_run(file: str, run: str, meta: dict[str, Any], arrays: Arrays, model: VilaU, tokenizer: Tokenizer,
              on_step: Callable[[int, int], None] | None = None) -> RunResult:
    """Repeat one run of ``meta`` and compare it with ``arrays``."""
    settings, prompts = meta["runs"][run], meta["prompts"]
    frames, tokens, rows = meta["frames"], model.config.tokens_per_frame, 2 * len(prompts)
    record = _Record(model.config.llm.layers, frames * tokens, rows)
    done = generate(
        model, tokenizer, prompts, list(range(len(prompts))), frames=frames,
        sampling=CodeSampling(cfg_scale=meta["cfg"], temperature=0 if settings["greedy"] else 1),
        gate=TasGate(thresholds_of(arrays[f"{run}/thresholds"]), variant="released"),
        draws=SharedDraws(settings["torch_manual_seed"], rows, model.config.llm.vocab),
        on_step=None if on_step is None else lambda progress: on_step(progress.done, progress.steps),
        on_token=record.token, observer=record.layer)
    worst = _Worst()
    wrong_codes = _prompt_mismatches(arrays, prompts, tokenizer) + _code_mismatches(done, arrays[f"{run}/video_ids"])
    worst.add("tas_code", record.scores[:, tokens:], arrays[f"{run}/tas_code"])
    logits = torch.stack([record.logits[int(step)] for step in arrays["rq_logits_steps"]])
    worst.add("rq_logits_cfg", logits, arrays[f"{run}/rq_logits_cfg"])
    if f"{run}/hidden_steps" in arrays:
        _compare_hidden(worst, run, arrays, model, tokenizer, prompts, record)
    pixels = arrays[f"{run}/frames"]
    worst.add("frames", model.frames(done.codes), pixels.astype(np.float32), FRAME_TOLERANCE[pixels.dtype])
    skip = arrays[f"{run}/skip"]
    return RunResult(file=file, run=run, decisions=skip.size, largest_error=worst.error, where=worst.where,
                     mismatches=int((record.replayed.numpy() != skip).sum()), tolerance=worst.allowed,
                     code_mismatches=wrong_codes)


def _prompt_mismatches(arrays: Arrays, prompts: list[str], tokenizer: Tokenizer) -> int:
    """Ids of the prompts that differ, of their padding too."""
    ids, real = tokenizer.batch([*prompts, *([None] * len(prompts))])
    stored, mask = arrays["prompt/input_ids"], arrays["prompt/attention_mask"]
    if stored.shape != tuple(ids.shape):
        return stored.size
    return int(((ids.numpy() != stored) & mask).sum() + (real.numpy() != mask).sum())


def _code_mismatches(done: VilaGeneration, stored: np.ndarray) -> int:
    return int((done.codes.flatten(1, 2).numpy() != stored).sum())


def _compare_hidden(worst: _Worst, run: str, arrays: Arrays, model: VilaU, tokenizer: Tokenizer, prompts: list[str],
                    record: _Record) -> None:
    """LLaMA calls: 0 is the prompt, k feeds visual token k - 1."""
    steps = [int(step) for step in arrays[f"{run}/hidden_steps"]]
    ids, _ = tokenizer.batch([*prompts, *([None] * len(prompts))])
    inputs = [model.llm.embed(ids[:, -1]), *record.inputs]
    worst.add("llm_hidden", torch.stack([record.hidden[step] for step in steps]), arrays[f"{run}/llm_hidden"])
    worst.add("llm_input_last", torch.stack([inputs[step] for step in steps]), arrays[f"{run}/llm_input_last"])


@torch.inference_mode()
def check_parts(file: str, arrays: Arrays, model: VilaU) -> RunResult:
    """Image tokenizer, projector and sampling filter, each alone."""
    worst, tokenizer = _Worst(), model.vision_tower.rqvaesiglip
    stored = torch.from_numpy(arrays["encode/codes"].astype(np.int64))
    wrong = int((tokenizer.encode(torch.from_numpy(arrays["encode/pixel_values"]).float()) != stored).sum())
    worst.add("encode/z_q", tokenizer.quantizer.embed(stored), arrays["encode/z_q"])
    worst.add("encode/decoded_raw", tokenizer.decode(stored), arrays["encode/decoded_raw"])
    worst.add("encode/mm_projector_out", model.visual_input(stored.flatten(1, 2)), arrays["encode/mm_projector_out"])
    chances = probabilities(torch.from_numpy(arrays["sampling/logits"]), CodeSampling())
    worst.add("sampling/probs", chances, arrays["sampling/probs_after_topk900_topp096"])
    drawn = SharedDraws(7, 1, 1).codes(chances)
    wrong += int((drawn.numpy() != arrays["sampling/indices_seed7"]).sum())
    return RunResult(file=file, run="encode, sampling", decisions=0, mismatches=0, largest_error=worst.error,
                     where=worst.where, tolerance=worst.allowed, code_mismatches=wrong)


def check_image(file: str, meta: dict[str, Any], arrays: Arrays, model: VilaU, tokenizer: Tokenizer) -> RunResult:
    """One image with greedy codes."""
    worst = _Worst()
    prompt = meta["image_greedy"]["prompt"]
    done = generate(model, tokenizer, [prompt], [0], frames=1, start="<im_start>",
                    sampling=CodeSampling(cfg_scale=meta["cfg"], temperature=0))
    wrong = int((done.codes[:, 0].numpy() != arrays["image_greedy/image_ids"]).sum())
    pixels = arrays["image_greedy/image"]
    worst.add("image_greedy/image", model.frames(done.codes)[:, 0], pixels, FRAME_TOLERANCE[pixels.dtype])
    return RunResult(file=file, run="image_greedy", decisions=0, mismatches=0, largest_error=worst.error,
                     where=worst.where, tolerance=worst.allowed, code_mismatches=wrong)
