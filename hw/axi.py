"""AXI4 and AXI4-Lite signatures (ARM IHI 0022). Names become ``<port>__araddr`` and so on in Verilog.

Only what this design drives: bursts are INCR of full 64-byte beats, one ID, no locks; the board wrapper ties the rest.
"""

from amaranth.lib.wiring import In, Out, Signature

from hw.config import PORT_BYTES

ADDRESS_BITS = 40
DATA_BITS = 8 * PORT_BYTES
RESPONSE_OKAY = 0


def read_channels() -> dict:
    """AR and R members of an AXI4 master."""
    return {
        "araddr": Out(ADDRESS_BITS), "arlen": Out(8), "arsize": Out(3), "arburst": Out(2),
        "arvalid": Out(1), "arready": In(1),
        "rdata": In(DATA_BITS), "rresp": In(2), "rlast": In(1), "rvalid": In(1), "rready": Out(1),
    }


def write_channels() -> dict:
    """AW, W and B members of an AXI4 master."""
    return {
        "awaddr": Out(ADDRESS_BITS), "awlen": Out(8), "awsize": Out(3), "awburst": Out(2),
        "awvalid": Out(1), "awready": In(1),
        "wdata": Out(DATA_BITS), "wstrb": Out(PORT_BYTES), "wlast": Out(1), "wvalid": Out(1), "wready": In(1),
        "bresp": In(2), "bvalid": In(1), "bready": Out(1),
    }


ReadMaster = Signature(read_channels())
"""AXI4 read-only master (a weight port)."""

WriteMaster = Signature(write_channels())
"""AXI4 write-only master."""

Master = Signature(read_channels() | write_channels())
"""AXI4 master with both directions (the data port)."""

LiteSlave = Signature({
    "awaddr": In(16), "awvalid": In(1), "awready": Out(1),
    "wdata": In(32), "wstrb": In(4), "wvalid": In(1), "wready": Out(1),
    "bresp": Out(2), "bvalid": Out(1), "bready": In(1),
    "araddr": In(16), "arvalid": In(1), "arready": Out(1),
    "rdata": Out(32), "rresp": Out(2), "rvalid": Out(1), "rready": In(1),
})
"""AXI4-Lite slave with a 64 KiB window (the control port)."""
