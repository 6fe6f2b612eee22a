"""How fast a board is reached: round trips of register accesses, transfer rates of memory."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from host.board import Board, BoardError, memory_bytes
from host.driver import Driver
from hw.registers import address

SMALLEST_BYTES, STEP = 64, 8
"""Sizes of transfers: from the smallest up, each eight times the one before."""
LARGEST_BYTES = 16 << 20


def bench_link(board: Board, *, seconds: float, seed: int) -> dict[str, Any]:
    """Measure for ``seconds`` per figure; returns a report. What was written is read back and compared.

    Times are those of the calls that the rest of the host makes, with all that the board's transport does in them: a
    card reads larger writes back (host/xdma.py), which is in their time.

    Raises
    ------
    BoardError
        The board is another build, failed, or gave back other bytes.
    """
    Driver(board)
    rng = np.random.default_rng(seed)
    sizes = []
    size = SMALLEST_BYTES
    while size <= min(LARGEST_BYTES, memory_bytes(board.config) // 2):
        sizes.append(size)
        size *= STEP
    register = address("HOST_MASK")
    return {
        "kind": board.kind, "preset": board.config.name, "seed": seed,
        "register_read_us": 1e6 * _seconds(lambda: board.read_csr(register), seconds),
        "register_write_us": 1e6 * _seconds(lambda: board.write_csr(register, 0), seconds),
        "transfers": [_transfers(board, size, seconds, rng) for size in sizes],
    }


def _transfers(board: Board, size: int, seconds: float, rng: np.random.Generator) -> dict[str, Any]:
    data = rng.integers(0, 256, size, dtype=np.uint8)
    write = _seconds(lambda: board.write_memory(0, data), seconds)
    read = _seconds(lambda: board.read_memory(0, size), seconds)
    wrong = np.flatnonzero(board.read_memory(0, size) != data)
    if len(wrong):
        raise BoardError(f"memory at {wrong[0]:#x} does not hold what was written ({len(wrong)} of {size} bytes "
                         "differ); run fastcar-host board-test")
    return {"bytes": size, "write_us": 1e6 * write, "read_us": 1e6 * read,
            "write_mb_per_s": size / write / 1e6, "read_mb_per_s": size / read / 1e6}


def _seconds(action: Callable[[], Any], limit: float) -> float:
    """Mean time of ``action``, repeated for ``limit`` seconds, once at least, after one call that does not count."""
    action()
    start, count = time.perf_counter(), 0
    while True:
        action()
        count += 1
        passed = time.perf_counter() - start
        if passed >= limit:
            return passed / count


def text(report: dict[str, Any]) -> str:
    """The report as a table."""
    lines = [f"register: read {report['register_read_us']:.1f} us, write {report['register_write_us']:.1f} us",
             f"{'bytes':>10} {'write us':>10} {'read us':>10} {'write MB/s':>11} {'read MB/s':>11}"]
    lines += [f"{row['bytes']:>10} {row['write_us']:>10.1f} {row['read_us']:>10.1f} {row['write_mb_per_s']:>11.1f} "
              f"{row['read_mb_per_s']:>11.1f}" for row in report["transfers"]]
    return "\n".join(lines)
