"""Prompts of VILA-U: the conversation template, and text tokens.

Source: the template ``vicuna_v1`` of VILA-U; SentencePiece models as LLaMA has them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from model.checkpoint import CheckpointError
from model.vocabulary import PromptError

SYSTEM = ("A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
          "detailed, and polite answers to the user's questions.")
SPECIAL_TOKENS = ("<im_start>", "<im_end>", "<vi_start>", "<vi_end>")
"""The last ids of the vocabulary, in this order."""
PAD_ID = 0


def conversation(prompt: str | None) -> str:
    """Text before the start token; None is the unconditional prompt.

    An empty turn is written without the spaces around it, as the published template does.
    """
    turn = "" if prompt is None else f" {prompt.strip()} "
    return f"{SYSTEM} USER:{turn}ASSISTANT: "


class Tokenizer:
    """Text to ids by the SentencePiece model in ``folder`` (the ``llm`` of a checkpoint).

    Parameters
    ----------
    vocab : :class:`int`
        Rows of the text embedding; the special tokens are the last ones.

    Raises
    ------
    CheckpointError
        There is no readable ``tokenizer.model``, the package sentencepiece is missing, or ids do not fit ``vocab``.
    """

    def __init__(self, folder: Path, vocab: int):
        try:
            import sentencepiece
        except ImportError as error:
            raise CheckpointError("text tokens of VILA-U need the package sentencepiece; pip install sentencepiece"
                                  ) from error
        path = folder / "tokenizer.model"
        if not path.is_file():
            raise CheckpointError(f"no {path}; take the tokenizer files of the release too")
        try:
            self._pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (RuntimeError, OSError) as error:
            raise CheckpointError(f"{path} is no SentencePiece model: {error}") from error
        self.special = {name: vocab - len(SPECIAL_TOKENS) + place for place, name in enumerate(SPECIAL_TOKENS)}
        self._check_special(folder / "added_tokens.json")
        if self._pieces.vocab_size() > min(self.special.values()):
            raise CheckpointError(f"{path} has {self._pieces.vocab_size()} pieces, which leaves no room for the "
                                  f"{len(SPECIAL_TOKENS)} special tokens in a vocabulary of {vocab}")

    def _check_special(self, path: Path) -> None:
        if path.is_file():
            stored = json.loads(path.read_text())
            for name, number in self.special.items():
                if stored.get(name, number) != number:
                    raise CheckpointError(f"{path} gives {name} the id {stored[name]}, but the vocabulary of the model "
                                          f"has it at {number}; the files belong to different models")

    def ids(self, prompt: str | None, start: str = "<vi_start>") -> list[int]:
        """Ids of a whole prompt up to the start token of a video (or ``<im_start>`` of an image); None: unconditional.

        Raises
        ------
        PromptError
            The prompt is empty or contains a special token.
        """
        if prompt is not None:
            if not prompt.strip():
                raise PromptError("the prompt is empty; describe the video")
            found = [token for token in SPECIAL_TOKENS if token in prompt]
            if found:
                raise PromptError(f"the prompt contains {found[0]}, which is reserved; leave it out")
        return [self._pieces.bos_id(), *self._pieces.encode(conversation(prompt)), self.special[start]]

    def batch(self, prompts: Sequence[str | None], start: str = "<vi_start>") -> tuple[Tensor, Tensor]:
        """Ids int64 and mask bool, both ``[rows, longest]``, padded on the left (mask False)."""
        rows = [self.ids(prompt, start) for prompt in prompts]
        longest = max(len(row) for row in rows)
        ids = torch.tensor([[PAD_ID] * (longest - len(row)) + row for row in rows])
        real = torch.tensor([[False] * (longest - len(row)) + [True] * len(row) for row in rows])
        return ids, real
