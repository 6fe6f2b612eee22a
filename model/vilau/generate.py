"""Generate videos with a VILA-U model, with replay of MLP outputs.

Rows of the batch are the conditional prompts, then, under guidance, as many unconditional ones. Every call starts from
nothing: caches, replayed values and random numbers belong to one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.engine import MlpEngine
from model.frames import FrameLayout
from model.gates import Gate, Rows
from model.generate import Progress
from model.sampling import guide
from model.statistics import ReplayStatistics
from model.vilau.llm import LlamaLayerStep, LlamaRun
from model.vilau.model import VilaU
from model.vilau.prompt import Tokenizer
from model.vilau.sampling import CodeSampling, Draws, RowDraws, probabilities


@dataclass(frozen=True, kw_only=True)
class VilaGeneration:
    """``codes`` int64 ``[videos, frames, tokens_per_frame, depth]``; not ``complete`` if it was interrupted, then they
    have the frames that were done."""

    codes: Tensor
    statistics: ReplayStatistics
    complete: bool


@dataclass(frozen=True, kw_only=True)
class TokenStep:
    """One visual token, for observers; tensors are only lent.

    ``number`` of the token, LLaMA ``hidden`` ``[rows, hidden]`` that it is predicted from, guided ``logits``
    ``[depth, videos, codebook]``, ``codes`` int64 ``[videos, depth]``.
    """

    number: int
    hidden: Tensor
    logits: Tensor
    codes: Tensor


@torch.inference_mode()
def generate(model: VilaU, tokenizer: Tokenizer, prompts: Sequence[str], seeds: Sequence[int], *,
             frames: int | None = None, sampling: CodeSampling | None = None, gate: Gate | None = None,
             engine: MlpEngine | None = None, window: int | None = None, positions: str = "sequence",
             draws: Draws | None = None,
             start: str = "<vi_start>", on_step: Callable[[Progress], None] | None = None,
             on_frame: Callable[[int, Tensor], None] | None = None,
             on_token: Callable[[TokenStep], None] | None = None,
             observer: Callable[[LlamaLayerStep], None] | None = None) -> VilaGeneration:
    """Generate one video per prompt, all together; frames come from :meth:`VilaU.frames`.

    An interrupt (Ctrl-C) ends the generation early; what is done is returned.

    Parameters
    ----------
    seeds : sequence of :class:`int`
        One per prompt; a video's random numbers come from its own generator.
    frames : :class:`int`
        Length, by default that of the model's training.
    sampling : :class:`~model.vilau.sampling.CodeSampling`
        A ``cfg_scale`` of 1 leaves the unconditional rows out.
    gate : :class:`~model.gates.Gate`
        ``TasGate(thresholds, variant="released")`` is the authors' code; by default nothing replays.
    engine : by default the MLPs run in the model's precision, on its device
    window : :class:`int`
        Visual tokens that are attended to besides the whole prompt, its own included; by default all.
    positions : one of :data:`~model.config.POSITIONS`
        Where the prompt stands once tokens were evicted.
    draws : :class:`~model.vilau.sampling.Draws`
        Random choices instead of those by ``seeds``.
    start : ``"<vi_start>"``, or ``"<im_start>"`` for an image (one frame)
    on_step : called after every visual token
    on_frame : called with the number of each complete frame and its codes int64 ``[videos, tokens_per_frame, depth]``
    on_token : called with every token as it is drawn
    observer : called for every layer of every step of the LLaMA

    Raises
    ------
    ValueError
        No prompt, another number of seeds, a negative seed, fewer than one frame, a window below one token, unknown
        positions.
    PromptError
        A prompt is empty or contains a special token.
    """
    config, sampling = model.config, sampling or CodeSampling()
    frames = config.frames if frames is None else frames
    tokens = config.tokens_per_frame
    _check(prompts, seeds, frames, window)
    rows = Rows(seeds=tuple(seeds), guided=sampling.cfg_scale != 1)
    ids, real = tokenizer.batch([*prompts, *([None] * (rows.count - rows.videos))], start)
    device = model.llm.norm.weight.device
    ids, real = ids.to(device), real.to(device)
    steps = frames * tokens
    layout = FrameLayout(prelude=ids.shape[1], tokens_per_frame=tokens, frames=frames, stride=tokens)
    run = LlamaRun(model.llm, rows, layout, window=min(window or steps, steps), positions=positions, gate=gate,
                   engine=engine, observer=observer)
    draws = draws or RowDraws(seeds, config.vision.depth)
    codes = torch.zeros(rows.videos, steps, config.vision.depth, dtype=torch.int64)
    done, complete = 0, True
    try:
        hidden = run.prefill(model.llm.embed(ids), real)[:, -1]
        for number in range(steps):
            codes[:, number] = _token(model, hidden, rows, sampling, draws, number, on_token)
            done = number + 1
            frame = number // tokens
            if on_frame is not None and done % tokens == 0:
                on_frame(frame, codes[:, frame * tokens:done])
            if done < steps:
                fed = codes[:, number].to(device).repeat(rows.count // rows.videos, 1)
                hidden = run.step(number, model.visual_input(fed))
            if on_step is not None:
                on_step(Progress(done=done, steps=steps, frame=frame, statistics=run.statistics))
    except KeyboardInterrupt:
        complete = False
    whole = done // tokens
    return VilaGeneration(codes=codes[:, :whole * tokens].unflatten(1, (whole, tokens)), statistics=run.statistics,
                          complete=complete)


def _token(model: VilaU, hidden: Tensor, rows: Rows, sampling: CodeSampling, draws: Draws, number: int,
           on_token: Callable[[TokenStep], None] | None) -> Tensor:
    """Codes int64 ``[videos, depth]`` of token ``number``, from hidden states ``[rows, hidden]``."""
    depths, quantizer = model.vision_tower.rqtransformer, model.vision_tower.rqvaesiglip.quantizer
    sequence, codes, guided = depths.begin(hidden), [], []
    embedding: Tensor | None = None
    for depth in range(model.config.vision.depth):
        logits = guide(depths.logits(sequence).float(), rows.videos, sampling.cfg_scale)
        if sampling.temperature == 0:
            code = logits.argmax(dim=1).cpu()
        else:
            code = draws.codes(probabilities(logits, sampling))
        codes.append(code)
        guided.append(logits)
        if depth + 1 < model.config.vision.depth:
            fed = code.to(hidden.device).repeat(rows.count // rows.videos)
            added = quantizer.codebooks[depth](fed)
            embedding = added if embedding is None else embedding + added
            sequence = depths.extend(sequence, embedding)
    draws.end_token()
    drawn = torch.stack(codes, dim=1)
    if on_token is not None:
        on_token(TokenStep(number=number, hidden=hidden, logits=torch.stack(guided), codes=drawn))
    return drawn


def _check(prompts: Sequence[str], seeds: Sequence[int], frames: int, window: int | None) -> None:
    if not prompts or len(prompts) != len(seeds):
        raise ValueError(f"{len(prompts)} prompts with {len(seeds)} seeds; give a prompt or more, and a seed for each")
    if any(not 0 <= seed < 1 << 63 for seed in seeds):
        raise ValueError(f"seeds must be in 0..2**63 - 1, not {list(seeds)!r}")
    if frames < 1:
        raise ValueError(f"frames must be at least 1, not {frames!r}")
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1 visual token, not {window!r}")
