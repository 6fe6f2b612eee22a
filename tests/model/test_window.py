"""Windows of every size against attention that rotates all keys anew in every step; the option of ``generate``."""

import pytest
import torch

from model import vocabulary
from model.config import POSITIONS, PRESETS
from model.gates import Rows, TasGate
from model.generate import Decoder, generate
from model.replay import FloatMlp
from tests.model.slow_window import slow_rollout
from tests.model.small import PROMPTS, SEPARATED, random_model

SEED = 21


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("config, window", [(PRESETS["tiny"], 5), (PRESETS["tiny"], 21), (SEPARATED, 18)],
                         ids=["below the stride", "above the stride", "one stride with separators"])
@pytest.mark.parametrize("threshold", [torch.inf, 0.0], ids=["dense", "replay"])
def test_positions_and_scores_long_after_the_first_eviction(config, window, positions, threshold):
    transformer = random_model(config)
    layout = config.layout
    steps = 4 * window + max(window, layout.stride) + 3  # the first eviction is at step ``window``
    codes = torch.randint(config.codebook, (steps,), generator=torch.Generator().manual_seed(SEED))
    text = torch.tensor(vocabulary.encode(PROMPTS[0], layout.prelude))
    with torch.no_grad():
        slow = slow_rollout(transformer, text, codes, window, positions, threshold)
    seen = []
    decoder = Decoder(transformer, Rows(seeds=(0,), guided=False), TasGate(threshold), FloatMlp(transformer),
                      window=window, positions=positions, observer=seen.append)
    logits = [decoder.prefill(text[None])] + [decoder.step(number, codes[number, None]) for number in range(steps)]
    torch.testing.assert_close(torch.cat(logits), slow.logits, atol=5e-5, rtol=1e-4)
    for layer in range(config.layers):
        mine = [item for item in seen if item.layer == layer]
        scores = [float(item.scores.mean()) for item in mine if item.scores is not None]
        assert scores == pytest.approx(slow.scores[layer], abs=2e-5)
        assert [bool(item.result.computed) for item in mine] == slow.computed[layer], f"layer {layer}, seed {SEED}"
    replayed = sum(row.count(False) for row in slow.computed)
    assert 0 < replayed < config.layers * (steps - layout.stride) if threshold == 0 else replayed == 0


def test_positions_differ_once_steps_are_evicted_and_not_before():
    transformer = random_model()
    codes = torch.randint(32, (24,), generator=torch.Generator().manual_seed(SEED))
    text = torch.tensor([vocabulary.encode(PROMPTS[0], 16)])
    ran = {}
    for positions in POSITIONS:
        decoder = Decoder(transformer, Rows(seeds=(0,), guided=False), TasGate(torch.inf), FloatMlp(transformer),
                          window=8, positions=positions)
        ran[positions] = [decoder.prefill(text)] + [decoder.step(n, codes[n, None]) for n in range(24)]
    apart = [float((a - b).abs().max()) for a, b in zip(ran["sequence"], ran["cache"])]
    assert max(apart[:9]) == 0 and min(apart[9:]) > 1e-4


def test_a_window_as_long_as_the_video_is_full_attention():
    transformer = random_model()
    whole = generate(transformer, PROMPTS[:2], [1, 2], window=64)
    assert torch.equal(whole.codes, generate(transformer, PROMPTS[:2], [1, 2], window=10 ** 9).codes)
    assert not torch.equal(whole.codes, generate(transformer, PROMPTS[:2], [1, 2], window=20).codes)
    assert torch.equal(whole.codes, generate(transformer, PROMPTS[:2], [1, 2], window=64, positions="cache").codes)


def test_the_model_s_own_window_is_the_default():
    transformer = random_model()
    own = generate(transformer, PROMPTS[:1], [1]).codes
    assert torch.equal(own, generate(transformer, PROMPTS[:1], [1], window=transformer.config.window).codes)


@pytest.mark.parametrize("settings, message", [
    ({"window": 0}, "window must be at least 1 visual step, not 0"),
    ({"positions": "place"}, "positions must be one of sequence, cache, not 'place'")])
def test_wrong_windows_are_refused(settings, message):
    with pytest.raises(ValueError) as error:
        generate(random_model(), PROMPTS[:1], [1], **settings)
    assert str(error.value) == message
