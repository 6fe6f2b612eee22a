"""Prompt template and tokens."""

import json
import shutil

import numpy as np
import pytest

from model.checkpoint import CheckpointError
from model.vilau.prompt import Tokenizer, conversation
from model.vocabulary import PromptError
from tests.model.vilau.folder import PROMPTS, REFERENCE, VOCAB


def test_template_of_a_prompt_and_of_none():
    assert conversation(" a car \n").endswith("user's questions. USER: a car ASSISTANT: ")
    assert conversation(None).endswith("user's questions. USER:ASSISTANT: ")


def test_batch_is_padded_on_the_left(tokenizer):
    ids, real = tokenizer.batch([*PROMPTS, None])
    lengths = [len(tokenizer.ids(prompt)) for prompt in [*PROMPTS, None]]
    assert real.sum(dim=1).tolist() == lengths and ids.shape[1] == max(lengths)
    for row, prompt in enumerate([*PROMPTS, None]):
        assert ids[row, real[row]].tolist() == tokenizer.ids(prompt)
        assert not ids[row, ~real[row]].any() and real[row, -1]
    assert ids[:, -1].tolist() == [VOCAB - 2] * 3
    assert tokenizer.ids(None, "<im_start>")[-1] == VOCAB - 4


@pytest.mark.parametrize("prompt, message", [("  ", "the prompt is empty"), ("a <vi_end> b", "contains <vi_end>")])
def test_bad_prompts(tokenizer, prompt, message):
    with pytest.raises(PromptError, match=message):
        tokenizer.ids(prompt)


def test_bad_tokenizers(folder, tmp_path):
    copy = shutil.copytree(folder / "llm", tmp_path / "llm")
    with pytest.raises(CheckpointError, match="leaves no room for the 4 special tokens in a vocabulary of 20"):
        Tokenizer(copy, 20)
    (copy / "added_tokens.json").write_text(json.dumps({"<vi_start>": 3}))
    with pytest.raises(CheckpointError, match="gives <vi_start> the id 3, but the vocabulary of the model has it at"):
        Tokenizer(copy, VOCAB)
    (copy / "tokenizer.model").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="is no SentencePiece model"):
        Tokenizer(copy, VOCAB)
    (copy / "tokenizer.model").unlink()
    with pytest.raises(CheckpointError, match="take the tokenizer files of the release too"):
        Tokenizer(copy, VOCAB)


@pytest.mark.parametrize("name", ["vilau_tiny_16", "vilau_tiny_256"])
def test_ids_of_the_authors(name):
    if not (REFERENCE / f"{name}_outputs.npz").is_file():
        pytest.skip(f"no reference vectors {name}")
    with np.load(REFERENCE / f"{name}_outputs.npz") as arrays:
        prompts = json.loads(bytes(arrays["meta_json"]))["prompts"]
        ids, real = Tokenizer(REFERENCE / name / "llm", 424).batch([*prompts, *([None] * len(prompts))])
        assert (ids.numpy() == arrays["prompt/input_ids"]).all()
        assert (real.numpy() == arrays["prompt/attention_mask"]).all()
