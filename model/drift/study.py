"""The rollouts of a study, each measured against the dense one and stored."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from model import checker
from model.calibrate import ROUNDS, sample_prompts
from model.drift import measures
from model.drift.forced import DenseLogits, LogitDrift, force
from model.drift.observe import DenseOutputs, Divergence, Inside
from model.drift.plan import DENSE, Run, Settings
from model.drift.store import Store, StoreError
from model.drift.thresholds import BISECTIONS, Calibration, calibrated
from model.engine import IntegerMlp, MlpEngine
from model.evaluate import held_out_prompts, spans
from model.gates import GATES, DenseGate, Gate, Rows, make_gate
from model.generate import LayerStep, generate
from model.replay import FloatMlp
from model.transformer import Transformer
from model.visual import VisualTokenizer

ENGINES: dict[str, Callable[[Transformer], MlpEngine]] = {"float": FloatMlp, "integer": IntegerMlp.of}
CHECKS = ("ok", "colour", "shape", "size", "direction", "motion_kept")


def step_cost(videos: int) -> float:
    """What a step of so many videos costs, in the unit of a progress bar: a part for the step, one for each video."""
    return 4 + videos / 6


@dataclass
class Study:
    """Runs rollouts that are missing in ``store``.

    Parameters
    ----------
    lengths : sequence of :class:`int`
        Prefixes of the rollout, in frames, that the checker judges as a whole.
    advance : called with the cost of what was done, see :func:`step_cost`
    describe : called with what is being done
    tell : called with a line about every finished run
    """

    transformer: Transformer
    visual: VisualTokenizer
    settings: Settings
    store: Store
    lengths: Sequence[int]
    advance: Callable[[float], None] = lambda cost: None
    describe: Callable[[str], None] = lambda text: None
    tell: Callable[[str], None] = lambda text: None
    _engines: dict[str, MlpEngine] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prompts = held_out_prompts(self.settings.prompts, self.settings.seed)
        self._steps = self.settings.frames * self.transformer.config.layout.stride

    def cost(self, runs: Sequence[Run]) -> float:
        """Cost of what is missing of ``runs``; calibration at its dearest."""
        settings = self.settings
        free = sum(step_cost(part.stop - part.start) for part in settings.batches)
        missing = sum(not self.store.has(run.name) for run in runs) + 2 * (not self._dense_is_there())
        known = self.store.thresholds
        groups: dict[tuple[str, int | None], int] = {}
        for run in runs:
            if run.target and GATES[run.gate].scale == "threshold" and run.name not in known:
                groups[run.gate, run.window] = groups.get((run.gate, run.window), 0) + 1
        sweeps = sum((ROUNDS + BISECTIONS) * step_cost((count + 2) * settings.calibration) for count in groups.values())
        return self._steps * (missing * (free + step_cost(settings.forced)) + sweeps)

    def run(self, runs: Sequence[Run]) -> None:
        """Do what is missing: the dense rollout, thresholds, then every run. KeyboardInterrupt keeps what is done."""
        self._dense()
        self.describe("thresholds")
        settings = self.settings
        calibration = Calibration(
            transformer=self.transformer, engine=self._engine(settings.engine), frames=settings.frames,
            prompts=sample_prompts(settings.calibration, settings.seed + 1),
            seeds=range(settings.seed + 1, settings.seed + 1 + settings.calibration),
            on_step=lambda videos: self.advance(step_cost(videos)))
        values = calibrated(self.store, runs, calibration)
        dense = self.store.load(DENSE.name)
        for run in runs:
            if not self.store.has(run.name):
                self.describe(run.name)
                started = time.monotonic()
                found = self._measured(run, values.get(run.name), dense)
                self.store.save(run.name, found)
                ratio = found["replayed"][1:].sum() / found["replayed"][0].size / found["steps"][1:].sum()
                self.tell(f"{run.name}: replays {ratio:.1%} of the eligible steps; {time.monotonic() - started:.0f} s")

    def _measured(self, run: Run, value: float | None, dense: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Everything about one run that is kept."""
        codes, inside = self._free(run, value)
        results = {"value": np.array(np.nan if value is None else value), "codes": codes, **vars(inside),
                   **self._pictures(codes, dense["codes"])}
        if not run.seed_offset:  # on the dense codes, other random numbers change nothing
            results |= self._forced(run, value, torch.from_numpy(dense["codes"].astype(np.int64)))
        return results

    def _dense(self) -> None:
        if self._dense_is_there():
            return
        self.describe("dense")
        codes = []
        for number, part in enumerate(self.settings.batches):
            outputs = self._outputs(number, part, create=True)
            codes.append(self._generate(DENSE, None, part, outputs.keep))
        together = np.concatenate(codes)
        if self.store.has(DENSE.name) and not np.array_equal(self.store.load(DENSE.name)["codes"], together):
            raise StoreError(f"the dense rollout in {self.store.folder} comes out differently here (another machine or "
                             "version of torch); give another folder with --out")
        given = torch.from_numpy(together.astype(np.int64))
        logits = self._logits(create=True)
        forced = self._forced_outputs(create=True)
        self._force(DENSE, None, given, forced.keep, logits.keep)
        # Once more, compared with itself: its sizes, and zeros that show that the comparison finds nothing.
        replayed, inside = self._free(DENSE, None)
        if not np.array_equal(replayed, together):
            raise RuntimeError("two dense rollouts of the same prompts and seeds differ; nothing can be compared here")
        self.store.save(DENSE.name, {"value": np.array(np.nan), "codes": together, **vars(inside),
                                     **self._pictures(together, together), **self._forced(DENSE, None, given)})

    def _dense_is_there(self) -> bool:
        files = [self.store.scratch(f"outputs-{number}") for number in range(len(self.settings.batches))]
        files += [self.store.scratch("forced-outputs"), self.store.scratch("forced-logits")]
        return self.store.has(DENSE.name) and all(path.is_file() for path in files)

    def _engine(self, name: str) -> MlpEngine:
        if name not in self._engines:
            self._engines[name] = ENGINES[name](self.transformer)
        return self._engines[name]

    def _gate(self, run: Run, value: float | None) -> Gate:
        return DenseGate() if value is None else make_gate(run.gate, value, transformer=self.transformer)

    def _rows(self, videos: int) -> Rows:
        return Rows(seeds=(0,) * videos, guided=self.transformer.config.sampling.cfg_scale != 1)

    def _outputs(self, number: int, part: slice, create: bool = False) -> DenseOutputs:
        return DenseOutputs(self.store.scratch(f"outputs-{number}"), self.transformer.config,
                            self._rows(part.stop - part.start).count, self.settings.frames, create=create)

    def _forced_outputs(self, create: bool = False) -> DenseOutputs:
        return DenseOutputs(self.store.scratch("forced-outputs"), self.transformer.config,
                            self._rows(self.settings.forced).count, self.settings.frames, create=create)

    def _logits(self, create: bool = False) -> DenseLogits:
        return DenseLogits(self.store.scratch("forced-logits"), self.transformer, self.settings.forced,
                           self.settings.frames, create=create)

    def _generate(self, run: Run, value: float | None, part: slice,
                  observer: Callable[[LayerStep], None]) -> np.ndarray:
        """Codes ``[videos, frames, tokens_per_frame]`` of a batch."""
        videos = part.stop - part.start
        made = generate(self.transformer, self.prompts[part],
                        [seed + run.seed_offset for seed in self.settings.seeds[part]], frames=self.settings.frames,
                        gate=self._gate(run, value), engine=self._engine(run.engine or self.settings.engine),
                        window=run.window, observer=observer,
                        on_step=lambda progress: self.advance(step_cost(videos)))
        if not made.complete:
            raise KeyboardInterrupt
        return made.codes.numpy().astype(np.int32)

    def _free(self, run: Run, value: float | None) -> tuple[np.ndarray, Inside]:
        """Codes and :class:`Inside` of all prompts."""
        codes, parts = [], []
        for number, part in enumerate(self.settings.batches):
            divergence = Divergence(self._outputs(number, part), self.transformer.config,
                                    self._rows(part.stop - part.start), self.settings.frames)
            codes.append(self._generate(run, value, part, divergence))
            parts.append(divergence.result())
        return np.concatenate(codes), Inside.joined(parts)

    def _force(self, run: Run, value: float | None, codes: Tensor, observer: Callable[[LayerStep], None],
               on_logits: Callable[[int, int, Tensor], None]) -> None:
        count = self.settings.forced
        per_code = self._steps / (self.settings.frames * self.transformer.config.layout.tokens_per_frame)

        def counted(frame: int, index: int, logits: Tensor) -> None:
            on_logits(frame, index, logits)
            self.advance(step_cost(count) * per_code)

        force(self.transformer, self.prompts[:count], self.settings.seeds[:count], codes[:count],
              gate=self._gate(run, value), engine=self._engine(run.engine or self.settings.engine),
              window=run.window, observer=observer, on_logits=counted)

    def _forced(self, run: Run, value: float | None, codes: Tensor) -> dict[str, np.ndarray]:
        """The run on the dense codes of the first prompts: Inside and LogitDrift, with ``forced_`` before each name."""
        config, settings = self.transformer.config, self.settings
        divergence = Divergence(self._forced_outputs(), config, self._rows(settings.forced), settings.frames)
        drift = LogitDrift(self._logits(), settings.forced, settings.frames, config.layout.tokens_per_frame,
                           config.sampling.temperature or 1.0)
        self._force(run, value, codes, divergence, drift)
        return {f"forced_{name}": values for name, values in
                {**vars(divergence.result()), "divergence": drift.divergence, "same_best": drift.same_best}.items()}

    def _pictures(self, codes: np.ndarray, dense: np.ndarray) -> dict[str, np.ndarray]:
        """Measures of pictures and codes ``[videos, frames]``, and the checker's of spans ``[videos, spans]``."""
        found: dict[str, list[np.ndarray]] = {}
        for video_codes, dense_codes, prompt in zip(codes, dense, self.prompts):
            video, reference = (self.visual.decode(torch.from_numpy(part.astype(np.int64)))
                                for part in (video_codes, dense_codes))
            shown = measures.compare(video, reference, prompt)
            shown["agreement"] = (video_codes == dense_codes).mean(axis=1)
            judged = [checker.check(video[first:last + 1], prompt) for first, last in self.spans]
            shown |= {f"check_{name}": np.array([float(getattr(item, name)) for item in judged]) for name in CHECKS}
            for name, values in shown.items():
                found.setdefault(name, []).append(values)
        return {"spans": np.array(self.spans), **{name: np.stack(values) for name, values in found.items()}}

    @property
    def spans(self) -> list[tuple[int, int]]:
        """First and last frame of everything that is checked as one: the prefixes, then windows of frames."""
        frames = self.settings.frames
        prefixes = [(0, length - 1) for length in sorted({*self.lengths, frames})]
        return [*prefixes, *(span for span in spans(frames) if span not in prefixes)]
