"""Tests of model/transformer.py."""

import dataclasses

import pytest
import torch

from model.config import PRESETS
from model.transformer import Transformer, apply_rope, rope_tables, window_mask

TINY = PRESETS["tiny"]


def tiny(seed: int = 0, **changes: object) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(dataclasses.replace(TINY, **changes)).eval()


def inputs(model: Transformer, rows: int, steps: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    return (torch.randint(config.text_vocab, (rows, config.layout.prelude), generator=generator),
            torch.randint(config.codebook, (rows, steps), generator=generator))


def test_mask_by_definition() -> None:
    prelude, steps, window = 3, 7, 4
    mask = window_mask(prelude, steps, window)
    for query in range(prelude + steps):
        for key in range(prelude + steps):
            near = key >= prelude and 0 <= query - key < window
            assert mask[query, key] == (key <= query and (key < prelude or near)), (query, key)


def test_rope_scores_depend_on_the_distance_only() -> None:
    generator = torch.Generator().manual_seed(2)
    q, k = torch.randn(2, 1, 1, TINY.head_dim, generator=generator)

    def score(query: int, key: int) -> float:
        tables = [rope_tables(torch.tensor([position]), TINY) for position in (query, key)]
        return float((apply_rope(q, tables[0]) * apply_rope(k, tables[1])).sum())

    assert score(5000, 4984) == pytest.approx(score(16, 0), abs=1e-4)
    assert score(16, 0) != pytest.approx(score(17, 0), abs=1e-3)


def test_rope_as_complex_rotation() -> None:
    x = torch.randn(1, 5, TINY.head_dim, generator=torch.Generator().manual_seed(3))
    positions = torch.tensor([0, 1, 2, 70, 4000])
    half = TINY.head_dim // 2
    rates = torch.tensor([TINY.rope_theta ** (-i / half) for i in range(half)], dtype=torch.float64)
    turned = torch.complex(x[..., :half].double(), x[..., half:].double()) \
        * torch.polar(torch.ones(5, half, dtype=torch.float64), positions[:, None] * rates)
    expected = torch.cat((turned.real, turned.imag), dim=-1).float()
    assert torch.allclose(apply_rope(x, rope_tables(positions, TINY)), expected, atol=1e-5)


def test_shapes() -> None:
    model = tiny()
    text, codes = inputs(model, 3, 20)
    assert model(text, codes).shape == (3, 21, TINY.codebook)
    assert model(text, codes[:, :0]).shape == (3, 1, TINY.codebook)


def test_rows_and_the_future_do_not_matter() -> None:
    model = tiny()
    text, codes = inputs(model, 2, 40)
    whole = model(text, codes)
    assert torch.allclose(model(text[1:], codes[1:]), whole[1:], atol=1e-5)
    assert torch.allclose(model(text, codes[:, :25]), whole[:, :26], atol=1e-5)


def test_window_and_prelude_reach() -> None:
    """With one layer, a logit hangs on the prelude and on exactly the last ``window`` codes."""
    model = tiny(layers=1)
    text, codes = inputs(model, 1, 48)
    last = model(text, codes)[0, -1]
    for step, seen in ((15, False), (16, True), (47, True)):
        other = codes.clone()
        other[0, step] = (other[0, step] + 1) % TINY.codebook
        assert torch.equal(model(text, other)[0, -1], last) != seen, step
    other_text = text.clone()
    other_text[0, 0] = (other_text[0, 0] + 1) % TINY.text_vocab
    assert not torch.equal(model(other_text, codes)[0, -1], last)


def test_offset_moves_the_clip_away_from_the_prelude() -> None:
    model = tiny()
    text, codes = inputs(model, 2, 16)
    together = model(text, codes, torch.tensor([0, 9]))
    assert torch.allclose(together[0], model(text, codes, 0)[0], atol=1e-5)
    assert torch.allclose(together[1], model(text, codes, 9)[1], atol=1e-5)
    assert not torch.allclose(together[1], model(text, codes, 0)[1], atol=1e-3)


def test_paper_layout_with_separators() -> None:
    """256 tokens a frame and a separator: the second frame hangs on the first one, and the separator has a row."""
    config = dataclasses.replace(PRESETS["fastcar-256"], layers=1)
    torch.manual_seed(0)
    model = Transformer(config).eval()
    text, codes = inputs(model, 1, 2 * config.layout.stride)
    codes[:, config.layout.tokens_per_frame::config.layout.stride] = config.separator_code
    logits = model(text, codes)
    assert logits.shape == (1, 515, config.codebook)
    assert torch.isfinite(logits).all()
    other = codes.clone()
    other[0, 3] = (other[0, 3] + 1) % config.codebook
    aligned = config.layout.stride + 3
    assert not torch.equal(model(text, other)[0, aligned], logits[0, aligned])


def test_parameter_names_are_those_of_llama() -> None:
    names = set(tiny().state_dict())
    for part in ("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj",
                 "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_norm", "post_norm"):
        assert f"blocks.1.{part}.weight" in names
    assert not any(name.endswith("bias") for name in names)


def test_it_learns() -> None:
    """A hundred steps on one clip bring the loss well under that of knowing nothing."""
    model = tiny().train()
    text, codes = inputs(model, 2, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(100):
        loss = torch.nn.functional.cross_entropy(model(text, codes[:, :-1]).flatten(0, 1), codes.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3 < torch.log(torch.tensor(float(TINY.codebook)))
