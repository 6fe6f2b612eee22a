"""Weight stream: all weight ports read the same stretch of their regions, joined into one raw beat of all ports."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out, connect, flipped

from hw import axi
from hw.config import AcceleratorConfig
from hw.ops import ReadRequest
from hw.reader import Reader

WeightRequest = StructLayout({"offset": axi.ADDRESS_BITS, "beats": 32})
"""``beats`` 64-byte beats from ``offset`` (64-byte aligned, below ``channel_bytes``) on every port."""


def raw_beat(config: AcceleratorConfig) -> ArrayLayout:
    """What all ports deliver together: the data or scale beat of ``hw/layout.py``, port 0 first."""
    return ArrayLayout(axi.DATA_BITS, config.ports)


class WeightStream(wiring.Component):
    """Read a layer's weights on all ports and join them into raw beats.

    Port p reads from ``p * channel_bytes + offset``. Each port prefetches ``fifo_beats`` beats on its own, so ports may
    run apart by that much. One raw beat a cycle; 1 cycle from ``start`` to the readers' requests.

    Members
    -------
    ports : :py:`Out(axi.ReadMaster).array(config.ports)`
    start : :py:`In(stream.Signature(WeightRequest))`
        Accepted when every reader took the previous request.
    o : :py:`Out(stream.Signature(raw_beat(config)))`
    busy : :py:`Out(1)`
        A request is offered or anything of one is outstanding.
    exhausted : :py:`Out(1)`
        Nothing is left to come: the complement of ``busy``.
    error, flush : as in :class:`hw.reader.Reader`, over all ports.
    port_beats : :py:`Out(range(config.ports + 1))`
        Beats received in this cycle, all ports together.
    """

    def __init__(self, config: AcceleratorConfig):
        self.config = config
        super().__init__({
            "ports": Out(axi.ReadMaster).array(config.ports),
            "start": In(stream.Signature(WeightRequest)),
            "o": Out(stream.Signature(raw_beat(config))),
            "busy": Out(1),
            "exhausted": Out(1),
            "error": Out(1),
            "flush": In(1),
            "port_beats": Out(range(config.ports + 1)),
        })

    def elaborate(self, platform) -> Module:
        m = Module()
        request = Signal(ReadRequest)
        pending = Signal(self.config.ports)  # ports whose reader has not taken the request yet
        m.d.comb += self.start.ready.eq(~pending.any())
        with m.If(self.start.valid & self.start.ready):
            m.d.sync += [request.address.eq(self.start.p.offset), request.beats.eq(self.start.p.beats)]

        readers = [Reader(self.config.fifo_beats) for _ in range(self.config.ports)]
        joined = Signal()
        m.d.comb += [
            joined.eq(Cat(reader.o.valid for reader in readers).all()),
            self.o.valid.eq(joined),
            self.busy.eq(self.start.valid | pending.any() | Cat(reader.busy for reader in readers).any()),
            self.exhausted.eq(~self.busy),
            self.error.eq(Cat(reader.error for reader in readers).any()),
            self.port_beats.eq(sum(reader.bus.rvalid & reader.bus.rready for reader in readers)),
        ]
        for p, reader in enumerate(readers):
            m.submodules[f"reader_{p}"] = reader
            connect(m, reader.bus, flipped(self.ports[p]))
            m.d.comb += [
                reader.flush.eq(self.flush),
                reader.requests.valid.eq(pending[p]),
                reader.requests.p.address.eq(request.address | p * self.config.channel_bytes),
                reader.requests.p.beats.eq(request.beats),
                reader.o.ready.eq(self.o.ready & joined),
                self.o.p[p].eq(reader.o.p.data),
            ]
            with m.If(reader.requests.ready):
                m.d.sync += pending[p].eq(0)
        with m.If(self.start.valid & self.start.ready):
            m.d.sync += pending.eq(-1)
        with m.If(self.flush):
            m.d.sync += pending.eq(0)
        return m
