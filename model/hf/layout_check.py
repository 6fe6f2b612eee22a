"""Does the configured frame layout agree with the tokens that are fed?

The usual mistake is tokens-per-frame in place of the stride, where a separator sits between frames: the predecessor
is then another place of the picture, and replay quietly spoils the video.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from model.hf.config import ReplayConfig
from model.hf.errors import FrameLayoutError

SEEN_PERIODS = 3
"""An undeclared separator is believed in after this many occurrences, so two equal distances."""
SEARCHED_FRAMES = 5
"""Undeclared separators are looked for in this many configured strides."""


def id_keys(input_ids: Tensor) -> list[list[Hashable]]:
    """One key per position and row of token ids ``[rows, tokens]``."""
    return input_ids.T.tolist()


def embedding_keys(embeddings: Tensor, table: Tensor, ids: Sequence[int]) -> list[list[Hashable]]:
    """One key per position and row of ``embeddings`` ``[rows, tokens, hidden]``, equal for equal ones.

    An embedding that ``table`` ``[vocabulary, hidden]`` has for one of ``ids`` gets the id, others get their bytes.
    """
    known = {_bytes(table[number]): number for number in ids}
    keys = [[_bytes(vector) for vector in position] for position in embeddings.transpose(0, 1)]
    return [[known.get(key, key) for key in position] for position in keys]


def _bytes(vector: Tensor) -> bytes:
    return vector.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes()


class LayoutCheck:
    """Watches the visual tokens of one sequence."""

    def __init__(self, config: ReplayConfig):
        self._config = config
        self._declared = config.separator_ids
        self._learned: dict[int, list[Hashable]] = {}  # index in the frame -> key of every row
        self._history: list[tuple[Hashable, ...]] = []
        self._places: dict[Hashable, list[int]] = {}  # key of row 0 -> steps
        self._searching = config.separator_ids is None and config.stride == config.tokens_per_frame

    def feed(self, step: int, keys: Sequence[Hashable]) -> None:
        """Check visual step ``step``, one key per row. Raises :exc:`FrameLayoutError`."""
        if self._config.separator_ids == ():
            return
        if self._searching:
            self._search(step, tuple(keys))
        elif self._config.stride > self._config.tokens_per_frame:
            self._compare(step, list(keys))

    def _compare(self, step: int, keys: list[Hashable]) -> None:
        frame, index = divmod(step, self._config.stride)
        place = index - self._config.tokens_per_frame
        if self._declared is not None:
            if place >= 0 and any(key != self._declared[place] for key in keys):
                raise self._error(step, f"should be separator {self._declared[place]}, and is another token")
            if place < 0 and any(key in self._declared for key in keys):
                raise self._error(step, "should be a visual token, and is a separator")
        elif place >= 0 and keys != self._learned.setdefault(index, keys):
            raise self._error(step, "should be the separator of the frame before, and is another token")

    def _error(self, step: int, what: str) -> FrameLayoutError:
        frame, index = divmod(step, self._config.stride)
        return FrameLayoutError(
            f"with stride {self._config.stride} and {self._config.tokens_per_frame} tokens per frame the token of "
            f"frame {frame}, index {index} {what}; correct stride, separator_ids or prelude (positions before frame 0)")

    def _search(self, step: int, keys: tuple[Hashable, ...]) -> None:
        """Look for a token that recurs, and only so, with a period near the stride, but not equal to it."""
        stride = self._config.stride
        if step != len(self._history) or step >= SEARCHED_FRAMES * stride:
            self._searching = False
            self._history, self._places = [], {}
            return
        self._history.append(keys)
        places = self._places.setdefault(keys[0], [])
        places.append(step)
        if len(places) != SEEN_PERIODS:
            return
        period = places[1] - places[0]
        if places[2] - places[1] != period or period == stride or not stride / 2 < period <= 2 * stride:
            return
        # A separator lies before or behind the tokens of a frame, not among them.
        margin = max(period - stride, 1)
        if margin <= places[0] < period - margin:
            return
        for row in range(1, len(keys)):
            mine = [earlier[row] for earlier in self._history]
            if mine.count(keys[row]) != SEEN_PERIODS or any(mine[place] != keys[row] for place in places):
                return
        raise FrameLayoutError(
            f"the token at step {step} recurs exactly every {period} steps and nowhere else, as a separator does, but "
            f"the stride is {stride}: tokens per frame given in its place? Set stride (and separator_ids), or "
            f"separator_ids=() if there are no separators")
