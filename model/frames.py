"""Frame layout: where the tokens of a video sit in the sequence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class FrameLayout:
    """Shape of the token sequence of one video.

    The sequence is ``prelude`` text positions followed by visual steps v = 0, 1, ...: step v holds
    index ``v % stride`` of frame ``v // stride`` and sits at sequence position ``prelude + v``.

    Parameters
    ----------
    prelude : :class:`int`
        Text positions before the first visual step, the last one being ``<video>``.
    tokens_per_frame : :class:`int`
        Visual codes of one frame, in raster order.
    frames : :class:`int`
        Frames of a video unless the caller asks for another number.
    stride : :class:`int`
        Steps from a token to the same token of the next frame. Steps ``tokens_per_frame`` to
        ``stride - 1`` of every frame are separators: fed, but not predicted.
    """

    prelude: int
    tokens_per_frame: int
    frames: int
    stride: int

    def __post_init__(self) -> None:
        for name in ("prelude", "tokens_per_frame", "frames"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.stride < self.tokens_per_frame:
            raise ValueError(f"stride must be at least tokens_per_frame = {self.tokens_per_frame}, not {self.stride!r}")

    @property
    def separators(self) -> int:
        """Separator steps at the end of every frame."""
        return self.stride - self.tokens_per_frame

    @property
    def grid(self) -> int:
        """Side of the square token grid of a frame.

        Raises
        ------
        ValueError
            The number of tokens per frame is not a square.
        """
        side = round(self.tokens_per_frame ** 0.5)
        if side * side != self.tokens_per_frame:
            raise ValueError(f"tokens_per_frame must be a square to have a grid, not {self.tokens_per_frame!r}")
        return side

    def frame(self, step: int) -> int:
        """Frame that visual step ``step`` belongs to."""
        return step // self.stride

    def index(self, step: int) -> int:
        """Raster index of visual step ``step`` in its frame; separators follow the last token."""
        return step % self.stride

    def is_separator(self, step: int) -> bool:
        """Whether visual step ``step`` holds a separator."""
        return self.index(step) >= self.tokens_per_frame

    def position(self, step: int) -> int:
        """Sequence position of visual step ``step``."""
        return self.prelude + step
