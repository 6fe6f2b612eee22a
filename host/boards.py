"""Boards by name."""

from host.board import Board, BoardError
from host.golden import GoldenBoard
from hw.config import preset

BOARDS = ("sim", "golden")
"""Names that :func:`open_board` knows."""


def check_tools(name: str) -> None:
    """Find out whether board ``name`` can be opened here, before time is spent on anything else.

    Raises
    ------
    BoardError
        A program that the simulation is compiled with is missing; the message says what to install.
    """
    if name != "sim":
        return
    from sim.verilator import ToolMissing, find
    try:
        find()
    except ToolMissing as error:
        raise BoardError(str(error)) from error


def open_board(name: str, preset_name: str) -> Board:
    """A board of preset ``preset_name``: ``"sim"`` runs the RTL under Verilator (compiled on first use), ``"golden"``
    the integer model.

    Raises
    ------
    ValueError
        The name or the preset is unknown.
    BoardError
        The simulation cannot be built; the message says what is missing.
    """
    config = preset(preset_name)
    if name == "golden":
        return GoldenBoard(config)
    if name != "sim":
        raise ValueError(f"unknown board {name!r}; known: {', '.join(BOARDS)}")
    # Not at the top: the simulation pulls in the hardware description, which the golden board does without.
    from sim.board import SimulatedBoard
    from sim.build import BuildFailed
    from sim.verilator import ToolMissing
    try:
        return SimulatedBoard(config)
    except (ToolMissing, BuildFailed) as error:
        raise BoardError(str(error)) from error
