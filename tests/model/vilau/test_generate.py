"""Generation of videos: reproducible, independent rows, replay limits, interruption."""

import pytest
import torch

from model.gates import ChangeGate, TasGate
from model.vilau.generate import generate
from model.vilau.loader import load
from model.vilau.sampling import CodeSampling
from tests.model.vilau.folder import PROMPTS

SEEDS = [5, 6]
GREEDY = CodeSampling(temperature=0)
# Thresholds in the middle of what the two layers of the random model show.
GATES = {"dense": None, "released": TasGate([-0.55, -1.4], variant="released"), "paper": TasGate([-0.75, -1.8]),
         "cosine": TasGate([-0.18, -0.42], variant="cosine"), "change": ChangeGate(0.12, unconditional=1),
         "pairs": TasGate([-0.6, -1.45], variant="released", joint_pairs=True)}


def codes_of(model, tokenizer, prompts=PROMPTS, seeds=SEEDS, **settings):
    return generate(model, tokenizer, prompts, seeds, **settings).codes


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("gate", GATES.values(), ids=list(GATES))
@pytest.mark.parametrize("sampling", [CodeSampling(), GREEDY, CodeSampling(cfg_scale=1)],
                         ids=["sampled", "greedy", "unguided"])
def test_a_video_is_the_same_alone_beside_others_and_again(model, tokenizer, window, gate, sampling):
    settings = {"sampling": sampling, "gate": gate, "window": window, "frames": 2}
    both = generate(model, tokenizer, PROMPTS, SEEDS, **settings)
    assert both.codes.shape == (2, 2, 4, 2) and both.complete
    for row in range(2):
        alone = generate(model, tokenizer, PROMPTS[row:row + 1], SEEDS[row:row + 1], **settings)
        assert torch.equal(alone.codes[0], both.codes[row])
        twins = [0, 1] if sampling.cfg_scale != 1 else [0]
        assert (alone.statistics.replayed == both.statistics.replayed[:, :, [row + 2 * twin for twin in twins]]).all()
    if gate is not None:
        assert 0 < both.statistics.replay_ratio_eligible < 1


def test_seeds_and_prompts_matter(model, tokenizer):
    base = codes_of(model, tokenizer, PROMPTS[:1], [5])
    assert not torch.equal(base, codes_of(model, tokenizer, PROMPTS[:1], [6]))
    assert not torch.equal(base, codes_of(model, tokenizer, PROMPTS[1:], [5]))


@pytest.mark.parametrize("variant", ["paper", "released", "cosine"])
def test_infinite_thresholds_are_dense_and_everything(model, tokenizer, variant):
    frames, hidden = [], {}

    def look(name):
        return lambda token: hidden.setdefault(name, []).append(token.hidden.clone())

    dense = generate(model, tokenizer, PROMPTS, SEEDS, on_token=look("dense"),
                     on_frame=lambda number, codes: frames.append(codes.clone()))
    never = generate(model, tokenizer, PROMPTS, SEEDS, gate=TasGate(torch.inf, variant=variant), on_token=look("never"))
    assert torch.equal(torch.stack(hidden["dense"]), torch.stack(hidden["never"]))
    assert torch.equal(dense.codes, never.codes) and torch.equal(torch.stack(frames, 1), dense.codes)
    assert never.statistics.replay_ratio == 0
    assert never.statistics.tas_variant == variant and dense.statistics.tas_variant is None
    always = generate(model, tokenizer, PROMPTS, SEEDS, gate=TasGate(-torch.inf, variant=variant))
    assert always.statistics.replay_ratio_eligible == 1 and always.statistics.replayed[0].sum() == 0


def test_replay_of_everything_skips_the_mlps(model, tokenizer):
    calls = []
    hooks = [block.mlp.register_forward_hook(lambda *_: calls.append(1)) for block in model.llm.blocks]
    generate(model, tokenizer, PROMPTS, SEEDS, gate=TasGate(-torch.inf))
    for hook in hooks:
        hook.remove()
    # The prompt, and the first frame of 4 tokens; the last token of a video is not fed.
    assert len(calls) == 2 * (1 + 4)


def test_interruption_keeps_whole_frames(model, tokenizer):
    def stop(progress):
        if progress.done == 7:
            raise KeyboardInterrupt

    whole = codes_of(model, tokenizer)
    part = generate(model, tokenizer, PROMPTS, SEEDS, on_step=stop)
    assert not part.complete and torch.equal(part.codes, whole[:, :1])


def test_frames_are_pixels_of_each_code_alone(model, tokenizer):
    codes = codes_of(model, tokenizer, frames=2)
    frames = model.frames(codes)
    assert frames.shape == (2, 2, 3, 6, 6) and frames.dtype == torch.float32
    assert frames.min() >= 0 and frames.max() <= 255
    assert torch.equal(model.frames(codes[1, 1]), frames[1, 1])


def test_bfloat16_generates(folder, tokenizer):
    model = load(folder, dtype=torch.bfloat16)
    done = generate(model, tokenizer, PROMPTS, SEEDS, frames=2, gate=TasGate(0.0, variant="released"))
    assert done.complete and model.frames(done.codes).isfinite().all()


@pytest.mark.parametrize("prompts, seeds, settings, message", [
    ([], [], {}, "0 prompts with 0 seeds"), (PROMPTS, [1], {}, "2 prompts with 1 seeds"),
    (PROMPTS, [1, -1], {}, "seeds must be in"), (PROMPTS, SEEDS, {"frames": 0}, "frames must be at least 1, not 0"),
    (PROMPTS, SEEDS, {"window": 0}, "window must be at least 1 visual token, not 0")])
def test_arguments_are_checked(model, tokenizer, prompts, seeds, settings, message):
    with pytest.raises(ValueError, match=message):
        generate(model, tokenizer, prompts, seeds, **settings)
