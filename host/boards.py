"""Boards by name."""

from host.board import Board, BoardError
from host.golden import GoldenBoard
from host.xdma import XdmaBoard
from hw.config import preset

BOARDS = ("sim", "golden", "xdma")
"""Kinds of board. Cards are numbered: ``xdma:1`` is ``/dev/xdma1_*``, ``xdma`` the first."""


def split(name: str) -> tuple[str, int]:
    """Kind and card number of a board's name; 0 where there are no cards. Raises ValueError for an unknown name."""
    kind, colon, number = name.partition(":")
    if kind not in BOARDS:
        raise ValueError(f"unknown board {name!r}; known: {', '.join(BOARDS)} (cards are xdma:0, xdma:1, ...)")
    if colon and (kind != "xdma" or not number.isdecimal()):
        raise ValueError(f"unknown board {name!r}: only xdma takes a card number, as in xdma:1")
    return kind, int(number or 0)


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
    the integer model, ``"xdma"`` or ``"xdma:N"`` a PCIe card.

    Raises
    ------
    ValueError
        The name or the preset is unknown.
    BoardError
        The simulation cannot be built, or the card cannot be opened; the message says what is missing.
    """
    config = preset(preset_name)
    kind, card = split(name)
    if kind == "golden":
        return GoldenBoard(config)
    if kind == "xdma":
        return XdmaBoard(config, card)
    # Not at the top: the simulation pulls in the hardware description, which the golden board does without.
    from sim.board import SimulatedBoard
    from sim.build import BuildFailed
    from sim.verilator import ToolMissing
    try:
        return SimulatedBoard(config)
    except (ToolMissing, BuildFailed) as error:
        raise BoardError(str(error)) from error
