"""Tests of model/frames.py."""

import pytest

from model.frames import FrameLayout


def test_steps_with_separators() -> None:
    layout = FrameLayout(prelude=5, tokens_per_frame=4, frames=2, stride=6)
    assert layout.separators == 2
    assert layout.grid == 2
    assert [layout.frame(v) for v in (0, 5, 6, 13)] == [0, 0, 1, 2]
    assert [layout.index(v) for v in (0, 5, 6, 13)] == [0, 5, 0, 1]
    assert [layout.is_separator(v) for v in (3, 4, 5, 6)] == [False, True, True, False]
    assert layout.position(0) == 5


@pytest.mark.parametrize(("change", "message"), [
    ({"prelude": 0}, "prelude must be at least 1, not 0"),
    ({"tokens_per_frame": -1}, "tokens_per_frame must be at least 1, not -1"),
    ({"frames": 0}, "frames must be at least 1, not 0"),
    ({"stride": 15}, "stride must be at least tokens_per_frame = 16, not 15"),
])
def test_bad_layout(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        FrameLayout(**{"prelude": 2, "tokens_per_frame": 16, "frames": 8, "stride": 16} | change)
    assert str(caught.value) == message


def test_no_grid() -> None:
    layout = FrameLayout(prelude=1, tokens_per_frame=12, frames=1, stride=12)
    with pytest.raises(ValueError, match="tokens_per_frame must be a square to have a grid, not 12"):
        _ = layout.grid
