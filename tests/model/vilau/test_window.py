"""Windows of the LLaMA: the same as those of our own transformer, which is tested against a slow reference."""

import pytest
import torch

from model.config import POSITIONS
from model.gates import ChangeGate, DenseGate, Rows, TasGate
from model.generate import Decoder
from model.replay import FloatMlp
from model.vilau.generate import generate
from model.vilau.llm import Llama, LlamaConfig, LlamaRun
from model.vilau.sampling import CodeSampling
from tests.model.events import differences, record
from tests.model.small import random_model
from tests.model.vilau.folder import PROMPTS


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("window", [5, 21])
def test_our_transformer_s_weights_give_its_logits(window, positions):
    own = random_model()
    config = own.config
    llama = Llama(LlamaConfig(hidden=config.hidden, intermediate=config.intermediate, layers=config.layers,
                              heads=config.heads, vocab=1)).eval().requires_grad_(False)
    llama.blocks.load_state_dict(own.blocks.state_dict())
    llama.norm.load_state_dict(own.norm.state_dict())
    generator = torch.Generator().manual_seed(17)
    text = torch.randint(config.text_vocab, (2, config.layout.prelude), generator=generator)
    codes = torch.randint(config.codebook, (2, 4 * window + 3), generator=generator)
    rows = Rows(seeds=(1, 2), guided=False)
    decoder = Decoder(own, rows, DenseGate(), FloatMlp(own), window=window, positions=positions)
    run = LlamaRun(llama, rows, config.layout, window=window, positions=positions)
    expected = [decoder.prefill(text)]
    got = [run.prefill(own.embed_text(text), torch.ones_like(text, dtype=torch.bool))[:, -1]]
    for step in range(codes.shape[1]):
        expected.append(decoder.step(step, codes[:, step]))
        embedded = own.embed_visual(codes[:, step], torch.tensor(step % config.layout.stride))
        got.append(run.step(step, embedded))
    torch.testing.assert_close(own.head(torch.stack(got)), torch.stack(expected), atol=1e-4, rtol=1e-4)
    assert run.cache.size_bytes == decoder.cache.size_bytes


def test_unknown_positions_are_refused(model, tokenizer):
    with pytest.raises(ValueError, match="positions must be one of sequence, cache, not 'place'"):
        generate(model, tokenizer, PROMPTS, [1, 2], window=3, positions="place")


MORE = [*PROMPTS, "a quick brown fox", "the lazy dog jumps over a red car at night in the air"]


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
@pytest.mark.parametrize("scale", [3.0, 1.0], ids=["guided", "unguided"])
@pytest.mark.parametrize("window, positions", [(None, "sequence"), (3, "sequence"), (3, "cache")])
@pytest.mark.parametrize("gate", [None, TasGate(-1.0, variant="released")], ids=["dense", "replay"])
def test_a_video_decides_the_same_alone_and_in_any_batch(monkeypatch, model, tokenizer, gate, window, positions, scale,
                                                         temperature):
    sampling = CodeSampling(cfg_scale=scale, temperature=temperature, top_k=40, top_p=1.0)

    def events(videos):
        return record(monkeypatch, lambda **watch: generate(
            model, tokenizer, [MORE[v] for v in videos], [40 + v for v in videos], frames=2, sampling=sampling,
            window=window, positions=positions, **watch), gate, len(videos)).videos

    alone = [events([video])[0] for video in range(4)]
    for batch in ([1, 0], [2, 1, 0], [3, 2, 1, 0]):
        for video, beside in zip(batch, events(batch), strict=True):
            assert differences(alone[video], beside, f"video {video} in a batch of {len(batch)}, seed 40") == []
    computed = [choice for video in alone for what, choice, _ in video if what.startswith("row")]
    assert 0 in computed and 1 in computed if gate else all(computed)


def test_the_change_gate_of_one_batch_is_that_of_one_video(model, tokenizer):
    both = generate(model, tokenizer, PROMPTS, [1, 2], gate=ChangeGate(0.8), frames=2, window=3, positions="cache")
    for row in range(2):
        one = generate(model, tokenizer, PROMPTS[row:row + 1], [1 + row], gate=ChangeGate(0.8), frames=2, window=3,
                       positions="cache")
        assert torch.equal(one.codes[0], both.codes[row])
