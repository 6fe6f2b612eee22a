"""Words of the prompt and their token ids."""

from __future__ import annotations

PAD = "<pad>"
VIDEO = "<video>"
COLOURS = ("red", "green", "blue", "yellow", "white")
SHAPES = ("circle", "square", "triangle")
DIRECTIONS = ("left", "right", "up", "down")
WORDS = (PAD, VIDEO, "a", "small", "large", *COLOURS, *SHAPES, "moves", *DIRECTIONS,
         "slowly", "fast", "on", "black", "background")
"""Position in this tuple is the token id; the first two are not words of a prompt."""

_IDS = {word: number for number, word in enumerate(WORDS)}


class PromptError(ValueError):
    """A prompt that the model cannot be given."""


class UnknownWordError(PromptError):
    """A prompt with a word outside the vocabulary."""


def split(prompt: str) -> list[str]:
    """The words of a prompt, in lower case, without a closing full stop.

    Raises
    ------
    UnknownWordError
        A word is not in the vocabulary; the message shows it.
    """
    words = prompt.lower().rstrip(" .\n").split()
    for word in words:
        if word not in _IDS or word in (PAD, VIDEO):
            raise UnknownWordError(f"unknown word {word!r} in the prompt; the vocabulary is: {' '.join(WORDS[2:])}")
    return words


def encode(prompt: str | None, prelude: int) -> list[int]:
    """Token ids of the prelude: the words, then ``<pad>``, and ``<video>`` at the last position.

    ``None`` is the unconditional prompt of classifier-free guidance: no words.

    Raises
    ------
    PromptError
        A word is unknown, or there are more words than ``prelude - 1``.
    """
    words = split(prompt) if prompt is not None else []
    if len(words) > prelude - 1:
        raise PromptError(f"the prompt has {len(words)} words; at most {prelude - 1} fit into the prelude")
    return [_IDS[word] for word in words] + [_IDS[PAD]] * (prelude - 1 - len(words)) + [_IDS[VIDEO]]
