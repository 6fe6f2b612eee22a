import json

import numpy as np
import pytest

from host import cli
from host.benchlink import bench_link
from host.board import BoardError
from host.golden import GoldenBoard
from host.xdma import XdmaBoard
from tests.host.standin import StandInFiles


def test_rates_of_every_size_on_the_golden_board(capsys):
    assert cli.main(["bench-link", "--board", "golden", "--preset", "tiny", "--seconds", "0.001", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["bytes"] for row in report["transfers"]] == [64, 512, 4096, 32768, 262144]
    for row in report["transfers"]:
        assert row["write_mb_per_s"] == pytest.approx(row["bytes"] / row["write_us"])
        assert row["read_us"] > 0
    assert cli.main(["bench-link", "--board", "golden", "--preset", "tiny", "--seconds", "0.001"]) == 0
    assert "register: read" in capsys.readouterr().out
    assert cli.main(["bench-link", "--board", "golden", "--seconds", "0"]) == cli.USAGE


def test_a_slow_card_shows(card):
    control, path = card()
    with XdmaBoard("tiny", 0, StandInFiles(path)) as board:
        fast = bench_link(board, seconds=0.001, seed=1)
        control.fault("c2h_0", "delay", times=1000, value=0.02)
        slow = bench_link(board, seconds=0.001, seed=1)
    assert all(row["read_us"] >= 20_000 for row in slow["transfers"]) and fast["transfers"][0]["read_us"] < 20_000


def test_lost_bytes_are_no_rate():
    class Leaky(GoldenBoard):
        def read_memory(self, address: int, size: int) -> np.ndarray:
            data = super().read_memory(address, size)
            data[3] ^= 1
            return data

    with pytest.raises(BoardError, match="memory at 0x3 does not hold what was written"):
        bench_link(Leaky("tiny"), seconds=0.001, seed=0)
