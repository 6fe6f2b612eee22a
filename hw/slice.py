"""Register slices: cut the combinational paths between the memory ports and what is inside, in both directions."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw import axi

PAYLOADS = {
    "ar": ("addr", "len", "size", "burst"), "aw": ("addr", "len", "size", "burst"), "w": ("data", "strb", "last"),
    "r": ("data", "resp", "last"), "b": ("resp",),
}
"""Channels of AXI4 and the payload that this design uses."""
FROM_MASTER = ("ar", "aw", "w")


class Skid(wiring.Component):
    """Valid/ready register of ``width`` bits with both directions registered: one item a cycle, latency 1 cycle.

    Members
    -------
    i_valid, i_ready, i : from the sender. o_valid, o_ready, o : to the receiver.
    """

    def __init__(self, width: int):
        self.width = width
        super().__init__({"i_valid": In(1), "i_ready": Out(1, init=1), "i": In(width),
                          "o_valid": Out(1), "o_ready": In(1), "o": Out(width)})

    def elaborate(self, platform):
        m = Module()
        spare = Signal(self.width)  # the item that came in the cycle in which the receiver stopped taking
        free = Signal()
        m.d.comb += free.eq(self.o_ready | ~self.o_valid)
        with m.If(free):
            m.d.sync += [self.o_valid.eq(self.i_valid | ~self.i_ready), self.o.eq(Mux(self.i_ready, self.i, spare)),
                         self.i_ready.eq(1)]
        with m.Elif(self.i_valid & self.i_ready):
            m.d.sync += [spare.eq(self.i), self.i_ready.eq(0)]
        return m


class PortSlice(wiring.Component):
    """Skid registers on every channel of an AXI4 port.

    Parameters
    ----------
    signature : :data:`hw.axi.ReadMaster`, :data:`hw.axi.WriteMaster` or :data:`hw.axi.Master`

    Members
    -------
    inner : the port of the master behind the slice. outer : the port towards the memory.
    """

    def __init__(self, signature: wiring.Signature = axi.Master):
        self.port = signature
        super().__init__({"inner": In(signature), "outer": Out(signature)})

    def elaborate(self, platform):
        m = Module()
        for channel, fields in PAYLOADS.items():
            if f"{channel}valid" not in self.port.members:
                continue
            source, target = (self.inner, self.outer) if channel in FROM_MASTER else (self.outer, self.inner)
            data = Cat(getattr(source, channel + field) for field in fields)
            m.submodules[channel] = skid = Skid(len(data))
            m.d.comb += [
                skid.i.eq(data), skid.i_valid.eq(getattr(source, f"{channel}valid")),
                getattr(source, f"{channel}ready").eq(skid.i_ready),
                Cat(getattr(target, channel + field) for field in fields).eq(skid.o),
                getattr(target, f"{channel}valid").eq(skid.o_valid),
                skid.o_ready.eq(getattr(target, f"{channel}ready")),
            ]
        return m
