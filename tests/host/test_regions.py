import dataclasses

import pytest

from host.board import BoardError
from host.regions import Regions
from hw.config import preset

SMALL = dataclasses.replace(preset("tiny"), ports=2, channel_bytes=1 << 14)


def test_weights_are_page_aligned_and_data_lies_behind_them():
    regions = Regions(SMALL)
    assert [regions.weights(5000), regions.weights(100)] == [0, 8192]
    assert [regions.data(65), regions.data(1)] == [12288, 12288 + 128]


def test_data_moves_to_the_next_port_and_then_runs_out():
    regions = Regions(SMALL)
    regions.weights(12288)
    assert [regions.data(4096), regions.data(4096)] == [12288, 16384 + 12288]
    with pytest.raises(BoardError, match="no room for 0x40 more bytes in the memory of preset 'tiny'"):
        regions.data(64)
    regions.release_data()
    assert regions.data(64) == 12288


def test_weights_larger_than_a_region_are_refused():
    regions = Regions(SMALL)
    regions.weights(4096)
    with pytest.raises(BoardError, match="need 0x4001 bytes"):
        regions.weights((1 << 14) - 4095)
