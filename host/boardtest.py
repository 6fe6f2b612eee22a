"""Board test: is this board the one it says, does its memory hold data, does a job give the golden model's bits?"""

from typing import Any

import numpy as np
from rich.console import Console

from host.board import Board
from host.compile import CompileError, compile_layer, program
from host.driver import Driver
from host.regions import Regions
from hw.isa import INSTRUCTION_BYTES
from hw.layout import activation_bytes, output_bytes, pack_activations
from hw.registers import SOURCE_MASK
from model.integer import MlpWeights, MxMatrix, mlp

MEMORY_BYTES = 1 << 16
"""Size of each piece of memory that is written and read back."""


class BoardTestFailed(Exception):
    """The board answers, but not what it should."""


def check_board(board: Board, console: Console, *, hidden: int = 128, intermediate: int = 256, rows: int = 5,
               seed: int = 0) -> dict[str, Any]:
    """Test memory and one random job with ``rows`` rows, one in four of them replaying; returns a report.

    Raises
    ------
    BoardError
        The board is another build, or the job stopped.
    BoardTestFailed
        Memory or results are wrong; the message names the first wrong byte or element.
    ValueError
        A shape that the board cannot hold.
    """
    if hidden < 32 or intermediate < 32 or hidden % 32 or intermediate % 32:
        raise CompileError(f"hidden and intermediate must be positive multiples of 32, "
                           f"not {hidden!r} and {intermediate!r}")
    rng = np.random.default_rng(seed)
    driver = Driver(board)
    console.print(f"identification: {board.config.name}, {board.config.cores} cores, {board.config.ports} ports")
    checked = _test_memory(board, rng)
    console.print(f"memory: {checked} bytes written and read back")
    report = _test_job(driver, rng, hidden, intermediate, rows)
    console.print(f"job: {rows} rows of {hidden} x {intermediate}, {report['elements_compared']} output elements equal")
    return {"passed": True, "kind": board.kind, "preset": board.config.name, "seed": seed,
            "memory_bytes": checked, "hidden": hidden, "intermediate": intermediate, "rows": rows, **report}


def _test_memory(board: Board, rng: np.random.Generator) -> int:
    """Random bytes at the start and the end of every port's region, all written before any is read back."""
    region = board.config.channel_bytes
    size = min(MEMORY_BYTES, region // 2)
    written = {port * region + at: rng.integers(0, 256, size, dtype=np.uint8)
               for port in range(board.config.ports) for at in (0, region - size)}
    for address, data in written.items():
        board.write_memory(address, data)
    for address, data in written.items():
        wrong = np.flatnonzero(board.read_memory(address, size) != data)
        if len(wrong):
            raise BoardTestFailed(f"memory at {address + wrong[0]:#x} does not hold what was written "
                                  f"({len(wrong)} of {size} bytes differ)")
    return size * len(written)


def _test_job(driver: Driver, rng: np.random.Generator, hidden: int, intermediate: int, rows: int) -> dict[str, Any]:
    board, config = driver.board, driver.board.config
    weights = MlpWeights(*(MxMatrix.from_float(rng.standard_normal(shape)) for shape in (
        (intermediate, hidden), (intermediate, hidden), (hidden, intermediate))))
    x = MxMatrix.from_float(rng.standard_normal((rows, hidden)))
    replaying = rng.permutation(rows)[:rows // 4]
    computing = np.setdiff1d(np.arange(rows), replaying)
    layer, regions = compile_layer(config, weights), Regions(config)
    offset = regions.weights(layer.stream.shape[1])
    code = program(layer, offset, rows, heads=0)
    inputs, outputs = regions.data(rows * activation_bytes(hidden)), regions.data(rows * output_bytes(hidden))
    base = regions.data(code.size)
    old = rng.integers(0, 256, rows * output_bytes(hidden), dtype=np.uint8)
    for port, stream in enumerate(layer.stream):
        board.write_memory(port * config.channel_bytes + offset, stream)
    for address, data in ((base, code), (inputs, pack_activations(x)), (outputs, old)):
        board.write_memory(address, data)
    mask = sum(1 << int(row) for row in computing)
    for name, value in (("SOURCE", SOURCE_MASK), ("ACTIVE", (1 << rows) - 1), ("HOST_MASK", mask),
                        ("PROGRAM_BASE", base), ("PROGRAM_COUNT", code.size // INSTRUCTION_BYTES),
                        ("INPUT_BASE", inputs), ("OUTPUT_BASE", outputs)):
        driver.write(name, value)
    driver.run()
    if driver.read("INDEX") != mask:
        raise BoardTestFailed(f"the Index Register reads {driver.read('INDEX'):#x}, not the mask {mask:#x}")
    expected = old.view(np.uint16).reshape(rows, -1).copy()
    expected[computing, :hidden] = mlp(x, weights).y[computing]
    found = board.read_memory(outputs, old.size).view(np.uint16).reshape(rows, -1)
    wrong = np.argwhere(found != expected)
    if len(wrong):
        slot, element = wrong[0]
        raise BoardTestFailed(f"slot {slot}, element {element}: the board gives "
                              f"{found[slot, element]:#06x}, the golden model {expected[slot, element]:#06x} "
                              f"({len(wrong)} of {found.size} words differ)")
    return {"elements_compared": len(computing) * hidden, "rows_replayed": len(replaying),
            "counters": driver.counters()}
