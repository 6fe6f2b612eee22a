"""Conformance of decoder and replay with runs that the authors' code made on a LLaMA of its own.

A file of that kind holds ``config_json``, weights, input embeddings, and for every run its thresholds, temporal
attention scores, replay masks and hidden states. Sizes, run names and thresholds come from the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model.config import RunSizes
from model.frames import FrameLayout
from model.gates import Decision, Gate, Rows, Step, TasGate, temporal_scores
from model.vilau.llm import Llama, LlamaConfig, LlamaLayerStep, LlamaRun, published_name

Arrays = Mapping[str, np.ndarray]
TOLERANCE = 1e-4
"""Largest allowed difference of scores, hidden states and MLP outputs."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Outcome for one run: wrong replay decisions (or codes), and the largest difference with the array it is in."""

    file: str
    run: str
    decisions: int
    mismatches: int
    largest_error: float
    where: str
    tolerance: float
    code_mismatches: int = 0

    @property
    def failed(self) -> bool:
        """Whether anything differs by more than it may."""
        return self.mismatches > 0 or self.code_mismatches > 0 or self.largest_error > self.tolerance


def holds_llm_runs(arrays: Arrays) -> bool:
    """Whether ``arrays`` are vectors of this kind."""
    return "config_json" in arrays and any(key.startswith("run/") for key in arrays)


def run_names(arrays: Arrays) -> list[str]:
    """Runs of a file, in its order."""
    return list(dict.fromkeys(key.split("/")[1] for key in arrays if key.startswith("run/")))


def thresholds_of(stored: np.ndarray) -> list[float]:
    """Thresholds as a gate takes them; NaN, a layer that never replays, becomes infinity."""
    return [float("inf") if np.isnan(value) else float(value) for value in stored]


class EachRun:
    """One gate per run, each for its own rows: all runs of a file decode together, in one batch.

    The gates must answer with masks, as that of the released code does.

    Parameters
    ----------
    gates : list of gates
        Gate r decides on rows ``r * rows_per_run`` to ``(r + 1) * rows_per_run - 1``.
    """

    name, needs_scores, variant = "each-run", True, "released"

    def __init__(self, gates: list[Gate], rows_per_run: int):
        self._gates, self._rows = gates, rows_per_run

    def begin(self, config: RunSizes, rows: Rows) -> None:
        own = Rows(seeds=tuple(range(self._rows)), guided=False)
        for gate in self._gates:
            gate.begin(config, own)

    def decide(self, layer: int, step: Step, x: Tensor, scores: Tensor | None) -> Decision:
        masks = [torch.ones(self._rows, dtype=torch.bool)] * len(self._gates)
        if scores is not None:
            masks = [gate.decide(layer, step, inputs, part).compute for gate, inputs, part
                     in zip(self._gates, x.split(self._rows), scores.split(self._rows))]
        return Decision(eligible=step.eligible, compute=torch.cat(masks))

    def update(self, layer: int, step: Step, x: Tensor, computed: Tensor) -> None:
        pass


def check_llm(file: str, arrays: Arrays, on_step: Callable[[int, int], None] | None = None) -> list[RunResult]:
    """Decode the inputs of a file under the thresholds of each of its runs and compare everything stored.

    ``on_step`` is called with the steps done and in all.

    Raises
    ------
    ValueError
        An array is missing, or does not fit the others.
    """
    try:
        return _check(file, arrays, on_step)
    except KeyError as error:
        raise ValueError(f"{file} lacks an array or field: {error}") from error


@torch.inference_mode()
def _check(file: str, arrays: Arrays, on_step: Callable[[int, int], None] | None) -> list[RunResult]:
    sizes = json.loads(bytes(arrays["config_json"]))
    llama = load_llama(LlamaConfig.from_published(sizes), arrays)
    prompt, inputs = _embeddings(arrays, "prefill"), _embeddings(arrays, "decode")
    real = torch.from_numpy(np.asarray(arrays.get("input/prefill_attention_mask",
                                                  np.ones(prompt.shape[:2], dtype=bool))))
    names, rows, steps = run_names(arrays), prompt.shape[0], len(inputs)
    layout = FrameLayout(prelude=prompt.shape[1], tokens_per_frame=sizes["tokens_per_frame"], frames=1,
                         stride=sizes["tokens_per_frame"])
    gate = EachRun([TasGate(thresholds_of(arrays[f"run/{name}/thresholds"]), variant="released") for name in names],
                   rows)
    record = _Record(llama.config, steps, rows * len(names))
    run = LlamaRun(llama, Rows(seeds=tuple(range(rows * len(names))), guided=False), layout, window=steps, gate=gate,
                   observer=record.observe)
    prefill = run.prefill(prompt.repeat(len(names), 1, 1), real.repeat(len(names), 1))
    hidden = torch.empty(steps, rows * len(names), llama.config.hidden)
    for number in range(steps):
        hidden[number] = run.step(number, inputs[number].repeat(len(names), 1))
        if on_step is not None:
            on_step(number + 1, steps)
    found = {"prefill_hidden_final": prefill.transpose(0, 1)[None], "decode_hidden_final": hidden[None],
             "mlp_out": record.mlp_out, "decode_layer_in": record.layer_in,
             "tas_code": record.released, "tas_eq5": record.paper}
    return [_compare(file, name, arrays, {key: value[:, :, rows * index:rows * (index + 1)]
                                          for key, value in found.items()},
                     record.replayed[:, :, rows * index:rows * (index + 1)], real.numpy())
            for index, name in enumerate(names)]


def load_llama(config: LlamaConfig, arrays: Arrays) -> Llama:
    """A decoder in float32 with the weights of ``arrays``, plain or as the compact integer products."""
    state = {}
    for key, value in arrays.items():
        group, _, name = key.partition("/")
        if group == "weights":
            state[name] = torch.from_numpy(value).float()
        elif group == "weights_lowrank" and name.endswith(".A"):
            stem = key.removesuffix(".A")
            product = torch.from_numpy(value).float() @ torch.from_numpy(arrays[f"{stem}.B"]).float()
            state[f"{name.removesuffix('.A')}.weight"] = product * 2.0 ** int(arrays[f"{stem}.exp2"])
        elif group == "weights_int" and name.endswith(".W"):
            exponent = int(arrays[f"{key.removesuffix('.W')}.exp2"])
            state[f"{name.removesuffix('.W')}.weight"] = torch.from_numpy(value).float() * 2.0 ** exponent
    with torch.device("meta"):
        llama = Llama(config)
    # Inputs are embeddings and results hidden states: neither the embedding nor the head is in such a file.
    own = {name: state[published_name(name).removeprefix("model.")] for name, _ in llama.named_parameters()
           if name.startswith(("blocks.", "norm."))}
    llama.load_state_dict(own, strict=False, assign=True)
    return llama.requires_grad_(False)


def _embeddings(arrays: Arrays, kind: str) -> Tensor:
    """Input embeddings, float32, plain or as coefficients of a basis (every product is exact)."""
    if f"input/{kind}_embeds" in arrays:
        return torch.from_numpy(arrays[f"input/{kind}_embeds"]).float()
    basis = torch.from_numpy(arrays["input/embed_basis"]).float() * 2.0 ** int(arrays["input/exp2"])
    return torch.from_numpy(arrays[f"input/{kind}_coef"]).float() @ basis


def largest_difference(got: np.ndarray, expected: np.ndarray) -> float:
    """Largest absolute difference; infinite where only one of both is NaN, as it fits no tolerance."""
    difference = np.abs(got.astype(np.float64) - expected)
    only_one = np.isnan(difference) & ~(np.isnan(got) & np.isnan(expected))
    return float("inf") if only_one.any() else float(np.nan_to_num(difference).max(initial=0))


class _Record:
    """Everything per layer and step that files store, ``[layers, steps, rows, ...]``."""

    def __init__(self, config: LlamaConfig, steps: int, rows: int):
        shape = (config.layers, steps, rows)
        self.released, self.paper = torch.full(shape, torch.nan), torch.full(shape, torch.nan)
        self.replayed = torch.zeros(shape, dtype=torch.bool)
        self.layer_in, self.mlp_out = torch.empty(*shape, config.hidden), torch.empty(*shape, config.hidden)

    def observe(self, item: LlamaLayerStep) -> None:
        at = item.layer, item.step.number
        self.replayed[at] = ~item.result.computed
        self.layer_in[at], self.mlp_out[at] = item.layer_in, item.result.y
        if item.aligned_key is not None:
            for variant, kept in (("released", self.released), ("paper", self.paper)):
                kept[at] = temporal_scores(variant, item.raw_query, item.query, item.aligned_key).mean(dim=1)


def _compare(file: str, run: str, arrays: Arrays, found: dict[str, Tensor], replayed: Tensor,
             real: np.ndarray) -> RunResult:
    """Result of one run. ``found`` are ``[layers or 1, steps or prompt, rows, ...]``; ``real`` ``[rows, prompt]``."""
    skip = arrays[f"run/{run}/skip"]
    worst, where = 0.0, ""
    for key, value in found.items():
        if f"run/{run}/{key}" not in arrays:
            continue
        expected, got = arrays[f"run/{run}/{key}"], value.numpy()
        if key == "prefill_hidden_final":
            got, expected = got[0][real.T], expected.swapaxes(0, 1)[real.T]
        elif not key.startswith("tas"):
            got = got[:, arrays["kept_steps"]] if "kept_steps" in arrays else got
            expected = expected[None] if key == "decode_hidden_final" else expected
        if got.shape[-1] != expected.shape[-1] and "kept_channels" in arrays:
            got = got[..., arrays["kept_channels"]]
        if got.shape != expected.shape:
            raise ValueError(f"{file}: run/{run}/{key} has shape {list(expected.shape)}, not {list(got.shape)}")
        error = largest_difference(got, expected)
        if error > worst:
            worst, where = error, key
    mismatches = int((replayed.numpy() != skip).sum())
    return RunResult(file=file, run=run, decisions=skip.size, mismatches=mismatches, largest_error=worst, where=where,
                     tolerance=TOLERANCE)
