"""Tests of model/vocabulary.py."""

import pytest

from model.vocabulary import PAD, VIDEO, WORDS, PromptError, UnknownWordError, encode, split


def test_prelude_has_a_fixed_length() -> None:
    ids = encode("a red circle moves up", 16)
    assert [WORDS[i] for i in ids] == ["a", "red", "circle", "moves", "up"] + [PAD] * 10 + [VIDEO]
    assert [WORDS[i] for i in encode(None, 4)] == [PAD, PAD, PAD, VIDEO]


def test_words_are_distinct() -> None:
    assert len(set(WORDS)) == len(WORDS)


def test_case_and_full_stop() -> None:
    assert split("A Red CIRCLE. ") == ["a", "red", "circle"]


@pytest.mark.parametrize("word", ["purple", PAD, VIDEO])
def test_unknown_word_shows_the_vocabulary(word: str) -> None:
    with pytest.raises(UnknownWordError) as caught:
        encode(f"a {word} circle", 16)
    assert str(caught.value) == f"unknown word {word!r} in the prompt; the vocabulary is: {' '.join(WORDS[2:])}"


def test_too_long() -> None:
    with pytest.raises(PromptError, match="the prompt has 4 words; at most 3 fit into the prelude"):
        encode("a a a a", 4)
