"""Generation: against the training forward pass, determinism, batches, memory, separators, interruption."""

import dataclasses
import gc

import pytest
import torch

from model import checkpoint, vocabulary
from model.config import PRESETS, Sampling
from model.gates import ChangeGate, DenseGate, RandomGate, Rows, TasGate
from model.generate import Decoder, generate
from model.replay import FloatMlp
from tests.model.small import PROMPTS, SEPARATED, random_model

SEEDS = [11, 12, 13, 14]


@pytest.mark.parametrize("config", [PRESETS["tiny"], SEPARATED], ids=["tiny", "separators"])
def test_step_by_step_is_the_training_forward_pass(config):
    transformer = random_model(config)
    layout = config.layout
    steps = 4 * layout.stride + 3  # beyond the window, so that the ring wraps
    generator = torch.Generator().manual_seed(5)
    codes = torch.randint(config.codebook, (2, steps), generator=generator)
    if layout.separators:
        codes[:, torch.arange(steps) % layout.stride >= layout.tokens_per_frame] = config.separator_code
    text_ids = torch.tensor([vocabulary.encode(text, layout.prelude) for text in (PROMPTS[0], None)])
    decoder = Decoder(transformer, Rows(seeds=(0,), guided=True), DenseGate(), FloatMlp(transformer))
    stepped = [decoder.prefill(text_ids)] + [decoder.step(number, codes[:, number]) for number in range(steps)]
    torch.testing.assert_close(torch.stack(stepped, dim=1), transformer(text_ids, codes), atol=2e-5, rtol=1e-4)


def test_same_call_same_codes_and_another_seed_other_codes():
    transformer = random_model()
    first = generate(transformer, PROMPTS[:2], [1, 2])
    again = generate(transformer, PROMPTS[:2], [1, 2])
    other = generate(transformer, PROMPTS[:2], [1, 3])
    assert first.complete and first.codes.shape == (2, 4, 16) and first.codes.dtype == torch.int64
    assert torch.equal(first.codes, again.codes)
    assert torch.equal(first.codes[0], other.codes[0])
    assert not torch.equal(first.codes[1], other.codes[1])


@pytest.mark.parametrize("gate", [DenseGate(), TasGate(0.0), ChangeGate(1.0), RandomGate(0.5),
                                  ChangeGate(1.0, joint_pairs=True)],
                         ids=["dense", "tas", "change", "random", "joint"])
def test_a_video_does_not_depend_on_its_batch(gate):
    transformer = random_model()
    together = generate(transformer, PROMPTS, SEEDS, gate=gate).codes
    alone = torch.cat([generate(transformer, [prompt], [seed], gate=gate).codes
                       for prompt, seed in zip(PROMPTS, SEEDS)])
    assert torch.equal(together, alone)


def test_shipped_model_does_not_depend_on_the_batch():
    _, transformer, _ = checkpoint.load()
    together = generate(transformer, PROMPTS, SEEDS, gate=ChangeGate(0.3), frames=2)
    alone = torch.cat([generate(transformer, [prompt], [seed], gate=ChangeGate(0.3), frames=2).codes
                       for prompt, seed in zip(PROMPTS[:2], SEEDS[:2])])
    assert torch.equal(together.codes[:2], alone)
    assert 0 < together.statistics.replay_ratio_eligible < 1


def test_nothing_is_left_of_the_generation_before():
    transformer = random_model()
    gate, engine = ChangeGate(1.0), FloatMlp(transformer)
    generate(transformer, PROMPTS[:2], SEEDS[:2], gate=gate, engine=engine, frames=3)
    reused = generate(transformer, PROMPTS[2:], SEEDS[2:], gate=gate, engine=engine)
    fresh = generate(transformer, PROMPTS[2:], SEEDS[2:], gate=ChangeGate(1.0))
    assert torch.equal(reused.codes, fresh.codes)
    assert reused.statistics.summary() == fresh.statistics.summary()


def test_longer_videos_begin_alike():
    transformer = random_model()
    short = generate(transformer, PROMPTS[:1], [3], frames=2).codes
    assert torch.equal(generate(transformer, PROMPTS[:1], [3], frames=5).codes[:, :2], short)


def test_memory_does_not_grow_with_the_number_of_frames():
    transformer = random_model()

    def floats_held(frames: int) -> int:
        held = []

        def look(progress):
            if progress.done == progress.steps:
                gc.collect()
                held.append(sum(item.numel() for item in gc.get_objects()
                                if issubclass(type(item), torch.Tensor) and item.is_floating_point()))

        generate(transformer, PROMPTS[:1], [0], frames=frames, gate=TasGate(0.0), on_step=look)
        return held[0]

    # A couple of intermediate results may or may not be alive when it is looked; the caches are tens of thousands.
    assert abs(floats_held(64) - floats_held(16)) < 200


def test_separators_are_fed_and_not_drawn():
    transformer = random_model(SEPARATED)
    fed = []
    embed = transformer.embed_visual

    def spy(codes, indices):
        fed.append((int(indices), codes.tolist()))
        return embed(codes, indices)

    transformer.embed_visual = spy
    result = generate(transformer, PROMPTS[:2], [1, 2])
    assert result.codes.shape == (2, 3, 16)
    assert len(fed) == 2 * 18 + 15  # the last code of a video is not fed, nor are separators after it
    for number, (index, codes) in enumerate(fed):
        frame, expected_index = divmod(number, 18)
        assert index == expected_index
        if index >= 16:
            assert codes == [SEPARATED.separator_code] * 4
        else:
            assert codes == result.codes[:, frame, index].tolist() * 2


def test_without_guidance_there_are_no_unconditional_rows():
    transformer = random_model()
    result = generate(transformer, PROMPTS[:2], [1, 2], sampling=Sampling(cfg_scale=1.0))
    assert result.statistics.rows.count == 2
    assert "replay_ratio_unconditional" not in result.statistics.summary()


def test_guidance_pulls_towards_the_prompt():
    transformer = random_model()
    plain, guided, far = (generate(transformer, PROMPTS[:1], [1], sampling=Sampling(cfg_scale=scale, top_k=32)).codes
                          for scale in (1.0, 1.0001, 6.0))
    assert torch.equal(plain, guided)
    assert not torch.equal(plain, far)


def test_temperature_zero_ignores_the_seed():
    transformer = random_model()
    greedy = Sampling(cfg_scale=1.0, temperature=0.0)
    first, second = (generate(transformer, PROMPTS[:1], [seed], sampling=greedy).codes for seed in (1, 2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("stop, frames", [(1, 0), (16, 1), (40, 2)])
def test_interrupt_returns_the_frames_that_are_done(stop, frames):
    transformer = random_model()

    def interrupt(progress):
        if progress.done == stop:
            raise KeyboardInterrupt

    partial = generate(transformer, PROMPTS[:2], [1, 2], on_step=interrupt)
    whole = generate(transformer, PROMPTS[:2], [1, 2])
    assert not partial.complete
    assert torch.equal(partial.codes, whole.codes[:, :frames])


def test_progress_and_frames_are_reported():
    transformer = random_model()
    steps, shown = [], []
    result = generate(transformer, PROMPTS[:2], [1, 2], gate=ChangeGate(1.0), frames=3,
                      on_step=lambda progress: steps.append((progress.done, progress.steps, progress.frame)),
                      on_frame=lambda number, codes: shown.append((number, codes.clone())))
    assert steps == [(done + 1, 48, done // 16) for done in range(48)]
    assert [number for number, _ in shown] == [0, 1, 2]
    assert torch.equal(torch.stack([codes for _, codes in shown], dim=1), result.codes)


@pytest.mark.parametrize("arguments, message", [
    (dict(prompts=[], seeds=[]), "0 prompts with 0 seeds; give a prompt or more, and a seed for each"),
    (dict(prompts=PROMPTS[:1], seeds=[1, 2]), "1 prompts with 2 seeds; give a prompt or more, and a seed for each"),
    (dict(prompts=PROMPTS[:1], seeds=[-1]), "seeds must be in 0..2**63 - 1, not [-1]"),
    (dict(prompts=PROMPTS[:1], seeds=[1], frames=0), "frames must be at least 1, not 0"),
])
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError) as error:
        generate(random_model(), **arguments)
    assert str(error.value) == message


def test_unknown_word():
    with pytest.raises(vocabulary.UnknownWordError, match="purple"):
        generate(random_model(), ["a purple circle moves right"], [1])


def test_the_paper_s_frame_size_runs():
    """256 tokens and a separator a frame, with replay."""
    config = dataclasses.replace(PRESETS["fastcar-256"], layers=1)
    result = generate(random_model(config), PROMPTS[:1], [1], frames=2, gate=TasGate(-torch.inf))
    assert result.codes.shape == (1, 2, 256)
    assert result.statistics.replay_ratio_eligible == 1
