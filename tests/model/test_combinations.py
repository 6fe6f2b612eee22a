"""Every combination generates, and what a row shows is its own: dense or replay, full or window, guided or not."""

import gc
import warnings
import weakref

import pytest
import torch

from model import generate as generation
from model import sampling
from model.config import PRESETS, Sampling
from model.gates import ChangeGate, DenseGate, TasGate
from model.generate import generate
from model.replay import FloatMlp
from tests.model.events import differences, record
from tests.model.small import PROMPTS, random_model

SEEDS = [31, 32, 33, 34]
FRAMES = 2
STEPS = FRAMES * PRESETS["tiny"].layout.stride
GATES = {"dense": DenseGate, "tas": lambda: TasGate(0.0), "change": lambda: ChangeGate(0.9),
         "released": lambda: TasGate(0.0, variant="released")}


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
@pytest.mark.parametrize("scale", [1.5, 1.0], ids=["guided", "unguided"])
@pytest.mark.parametrize("window", [STEPS, 20, 6], ids=["full", "window", "window below the stride"])
@pytest.mark.parametrize("gate", GATES)
def test_a_row_decides_the_same_alone_and_in_any_batch(monkeypatch, gate, window, scale, temperature):
    transformer = random_model()
    settings = {"frames": FRAMES, "window": window,
                "sampling": Sampling(cfg_scale=scale, temperature=temperature, top_k=32)}

    def events(videos: list[int]):
        prompts, seeds = [PROMPTS[v] for v in videos], [SEEDS[v] for v in videos]
        return record(monkeypatch, lambda **watch: generate(transformer, prompts, seeds, **settings, **watch),
                      GATES[gate](), len(videos)).videos

    alone = [events([video])[0] for video in range(4)]
    rows = 1 + (scale != 1)
    draws = STEPS * (2 if temperature else 1)
    assert [len(events) for events in alone] == [draws + (STEPS - 1) * 2 * rows] * 4
    for count in (2, 3, 4):
        batch = list(range(count))[::-1]  # so that a row's place differs too
        for video, beside in zip(batch, events(batch), strict=True):
            for report in differences(alone[video], beside, f"{gate}, video {video} in a batch of {count}, {SEEDS}"):
                warnings.warn(report, stacklevel=1)
    replays = sum(not choice for video in alone for what, choice, _ in video if what.startswith("row"))
    possible = 4 * rows * 2 * (STEPS - 1 - 16)
    assert replays == 0 if gate == "dense" else 0 < replays < possible, f"{replays} of {possible} replayed"


def test_a_difference_is_only_forgiven_where_rounding_explains_it():
    base = [("code", 1, 0.5), ("row 0", 1, 2e-6), ("code", 7, 0.3)]
    assert differences(base, base, "here") == []
    close = [base[0], ("row 0", 0, 1e-6), ("code", 9, 0.1)]
    assert differences(base, close, "here") == ["here: row 0: 1 alone, 0 in the batch, margin 2e-06"]
    with pytest.raises(AssertionError, match="code: 1 alone, 2 in the batch, margin 0.5"):
        differences(base, [("code", 2, 1e-9), *base[1:]], "here")
    with pytest.raises(AssertionError, match="3 decisions alone, 2 in the batch"):
        differences(base, base[:2], "here")


@pytest.mark.parametrize("scale", [1.5, 1.0], ids=["guided", "unguided"])
@pytest.mark.parametrize("gate", [TasGate(torch.inf), TasGate(torch.inf, variant="released"),
                                  TasGate(torch.inf, variant="cosine"), TasGate(torch.inf, joint_pairs=True),
                                  ChangeGate(-1.0)], ids=["paper", "released", "cosine", "pairs", "change"])
def test_a_threshold_out_of_reach_is_dense_bit_for_bit(monkeypatch, gate, scale):
    transformer = random_model()
    settings = {"frames": 3, "sampling": Sampling(cfg_scale=scale, temperature=1.0, top_k=8)}

    def run(gate):
        logits, draws = [], []
        guide, frame = sampling.guide, sampling.Uniforms.frame

        def guided(rows, *rest):
            logits.append(rows.clone())
            return guide(rows, *rest)

        def drawn(self):
            draws.append(frame(self))
            return draws[-1]

        with monkeypatch.context() as patch:
            patch.setattr(generation, "guide", guided)
            patch.setattr(sampling.Uniforms, "frame", drawn)
            torch.manual_seed(0)
            before = torch.get_rng_state()
            codes = generate(transformer, PROMPTS[:2], SEEDS[:2], gate=gate, **settings).codes
            assert torch.equal(torch.get_rng_state(), before), "the global generator was used"
        return codes, torch.stack(logits), torch.stack(draws)

    for dense, gated in zip(run(None), run(gate), strict=True):
        assert dense.shape == gated.shape and torch.equal(dense, gated)


def test_no_score_is_computed_where_none_can_reach_the_threshold(monkeypatch):
    monkeypatch.setattr(generation, "temporal_scores", None)  # calling it would raise
    generate(random_model(), PROMPTS[:1], SEEDS[:1], gate=TasGate([torch.inf, torch.inf]), frames=2)
    with pytest.raises(TypeError):
        generate(random_model(), PROMPTS[:1], SEEDS[:1], gate=TasGate([torch.inf, 1e9]), frames=2)


@pytest.mark.parametrize("gate", [TasGate(-torch.inf), TasGate(-torch.inf, variant="cosine"),
                                  ChangeGate(torch.inf)], ids=["paper", "cosine", "change"])
def test_a_threshold_that_everything_meets_replays_all_but_the_first_frame(gate):
    replayed = generate(random_model(), PROMPTS[:2], SEEDS[:2], gate=gate, frames=3).statistics.replayed
    assert replayed.shape == (3, 2, 4) and not replayed[0].any()
    assert (replayed[1] == 16).all() and (replayed[2] == 15).all()  # the last code of a video is not fed


@pytest.mark.parametrize("gate", ["tas", "change"])
def test_run_one_and_run_twenty_agree(gate):
    transformer = random_model()
    used, engine = GATES[gate](), FloatMlp(transformer)
    first = generate(transformer, PROMPTS[:2], SEEDS[:2], gate=used, engine=engine, frames=2)
    for number in range(18):
        one = 1 + number % 2  # other rows, windows and lengths in between
        generate(transformer, PROMPTS[:one], [number] * one, gate=used, engine=engine, frames=1 + number % 3,
                 window=(6, 32)[number % 2])
    last = generate(transformer, PROMPTS[:2], SEEDS[:2], gate=used, engine=engine, frames=2)
    assert torch.equal(first.codes, last.codes)
    assert (first.statistics.replayed == last.statistics.replayed).all()
    assert first.statistics.summary() == last.statistics.summary()


def test_replay_memory_is_one_frame_however_long_the_video_is():
    transformer = random_model()
    sizes = set()
    for frames in (16, 64):
        gate, engine = ChangeGate(0.9), FloatMlp(transformer)
        generate(transformer, PROMPTS[:1], SEEDS[:1], gate=gate, engine=engine, frames=frames)
        sizes.add((engine.ring.size_bytes, gate.reference_bytes))
    layers, stride, hidden, rows = 2, 16, 64, 2
    assert sizes == {(layers * stride * hidden * 4 * rows, layers * stride * (hidden + hidden // 32) * rows)}


def test_replay_memory_is_freed(monkeypatch):
    held = []
    begin, update = FloatMlp.begin, ChangeGate.update

    def watched_begin(self, *arguments):
        begin(self, *arguments)
        held.append(weakref.ref(self.ring.values))

    def watched_update(self, *arguments):
        update(self, *arguments)
        held.append(weakref.ref(self._reference))

    monkeypatch.setattr(FloatMlp, "begin", watched_begin)
    monkeypatch.setattr(ChangeGate, "update", watched_update)
    result = generate(random_model(), PROMPTS[:1], SEEDS[:1], gate=ChangeGate(0.9), frames=2)
    gc.collect()
    assert result.complete and len(held) == 1 + 2 * (STEPS - 1)
    assert [item() for item in held] == [None] * len(held)
