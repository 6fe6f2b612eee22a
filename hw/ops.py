"""Payloads that travel between the parts of the accelerator: one home for every layout.

The schedule drives all cores in lockstep with MAC and drain operations; a core ignores operations whose ``local``
is not below the number of rows mapped to it.
"""

from amaranth.hdl import signed, unsigned
from amaranth.lib import enum
from amaranth.lib.data import ArrayLayout, StructLayout

from hw.axi import ADDRESS_BITS, DATA_BITS
from hw.config import SLOTS, AcceleratorConfig
from model.mx import BLOCK

BLOCK_BITS = 10
"""Index of a block of 32 in a reduction or an output: at most 1,024."""
OUTPUT_BLOCK_BYTES = 2 * BLOCK
"""A block of 32 BF16 outputs is exactly one 64-byte memory beat."""


class Phase(enum.Enum, shape=1):
    """Which matrix a beat belongs to: interleaved gate/up rows, or down rows."""

    GATE_UP = 0
    DOWN = 1


def codes_layout() -> ArrayLayout:
    """32 MXINT8 codes."""
    return ArrayLayout(signed(8), BLOCK)


def weight_beat(config: AcceleratorConfig) -> StructLayout:
    """One data beat with its scale bytes: ``rows`` weight rows of one block each."""
    return StructLayout({
        "codes": ArrayLayout(codes_layout(), config.rows),
        "scales": ArrayLayout(unsigned(8), config.rows),
    })


def mac_op(config: AcceleratorConfig) -> StructLayout:
    """Multiply the held beat with block ``block`` of local row ``local``, add to accumulator (bank, group, local).

    ``first``: block 0 of the reduction, the accumulator is overwritten instead of added to.
    """
    return StructLayout({
        "phase": Phase, "bank": 1, "group": range(config.groups), "local": range(config.locals),
        "block": BLOCK_BITS, "first": 1,
    })


def drain_op(config: AcceleratorConfig) -> StructLayout:
    """Send accumulators (bank, group, local) through the epilogue.

    ``block``: block of 32 hidden values (gate/up) or outputs (down) that the group's first row falls into.
    ``first``, ``last``: the group opens, closes that block (both 1 where a group is a block or more).
    """
    return StructLayout({
        "phase": Phase, "bank": 1, "group": range(config.groups), "local": range(config.locals),
        "block": BLOCK_BITS, "first": 1, "last": 1,
    })


def load_op(config: AcceleratorConfig) -> StructLayout:
    """One block of the MLP input for local row ``local``."""
    return StructLayout({"local": range(config.locals), "block": BLOCK_BITS, "scale": 8, "codes": codes_layout()})


def bind_op(config: AcceleratorConfig) -> StructLayout:
    """Output address of local row ``local``."""
    return StructLayout({"local": range(config.locals), "address": ADDRESS_BITS})


Shape = StructLayout({
    "hidden_blocks": BLOCK_BITS + 1, "intermediate_blocks": BLOCK_BITS + 1,
    "gate_scale": 8, "up_scale": 8, "down_scale": 8,
})
"""Layer in force (LAYER instruction): blocks of 32 and the largest scale byte of each matrix."""

ReadRequest = StructLayout({"address": ADDRESS_BITS, "beats": 32})
"""Contiguous 64-byte beats to read; ``address`` is 64-byte aligned."""

WriteRequest = StructLayout({"address": ADDRESS_BITS, "data": DATA_BITS})
"""One 64-byte beat to write."""


def placement(config: AcceleratorConfig) -> StructLayout:
    """Where the DRS put a slot: ``compute`` is its index bit; ``core`` and ``local`` mean nothing when it is 0."""
    return StructLayout({"compute": 1, "core": range(max(2, config.cores)), "local": range(config.locals)})


def placements(config: AcceleratorConfig) -> ArrayLayout:
    """Placement of every slot."""
    return ArrayLayout(placement(config), SLOTS)
