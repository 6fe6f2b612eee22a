"""AXI4-Lite control port: decodes the register map of hw/registers.py.

Source: ARM IHI 0022, AXI4-Lite; register meanings in docs/registers.md.
"""

from amaranth.hdl import Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout, View
from amaranth.lib.wiring import In, Out

from hw import axi, ops
from hw.config import AcceleratorConfig
from hw.identification import identification
from hw.registers import BY_NAME, CONTROL_RESET, CONTROL_START, COUNTERS, REGISTERS, Register

WATCHDOG_INIT = 1_000_000
"""WATCHDOG after power-up, in cycles."""

SETTINGS = tuple(r for r in REGISTERS if r.access == "rw" and r.name != "CONTROL")
"""Registers that the host writes and reads back."""

Settings = StructLayout({
    r.name.lower(): signed(64) if r.name == "THRESHOLD" else unsigned(32 * r.words) for r in SETTINGS})
"""Host-written registers, as the accelerator sees them."""

Status = StructLayout({"busy": 1, "done": 1, "error": 1, "nan": 1})
"""Bits of STATUS, least significant first."""

CounterValues = StructLayout({name.lower(): 64 for name in COUNTERS})
"""Every counter of hw/registers.py."""


class Csr(wiring.Component):
    """AXI4-Lite slave with one read and one write in flight; both answer after two cycles.

    Byte strobes are honoured. While ``status.busy`` writes reach CONTROL and WATCHDOG only: the other settings stay as
    they were when the job started. A 64-bit counter is read in two words and holds still only while no job runs.

    Members
    -------
    bus : AXI4-Lite slave, 64 KiB window. Unlisted addresses read 0; every access is answered with OKAY.
    settings : host-written registers.
    start, reset : one-cycle pulses of CONTROL writes; ``reset`` wins when both bits are written.
    status, error, error_index, index, placements, counters : what the status registers show.
    """

    def __init__(self, config: AcceleratorConfig):
        self.config = config
        super().__init__({
            "bus": Out(axi.LiteSlave),
            "settings": Out(Settings), "start": Out(1), "reset": Out(1),
            "status": In(Status), "error": In(8), "error_index": In(32),
            "index": In(32), "placements": In(ops.placements(config)), "counters": In(CounterValues),
        })

    def elaborate(self, platform):
        m = Module()
        bus = self.bus
        settings = Signal(Settings, init={"watchdog": WATCHDOG_INIT})
        m.d.comb += self.settings.eq(settings)

        # Both write channels are taken together, once the answer to the last write is gone, and act a cycle later:
        # nothing inside depends combinationally on the bus.
        taken, write = Signal(), Signal()
        where, data, strobe = Signal(14), Signal(32), Signal(4)
        m.d.comb += [
            taken.eq(bus.awvalid & bus.wvalid & ~write & ~bus.bvalid), bus.awready.eq(taken), bus.wready.eq(taken),
        ]
        m.d.sync += write.eq(taken)
        with m.If(taken):
            m.d.sync += [where.eq(bus.awaddr[2:]), data.eq(bus.wdata), strobe.eq(bus.wstrb)]
        with m.If(write):
            m.d.sync += bus.bvalid.eq(1)
            with m.Switch(where):
                with m.Case(BY_NAME["CONTROL"].address >> 2):
                    with m.If(strobe[0]):
                        m.d.comb += self.reset.eq((data & CONTROL_RESET) != 0)
                        m.d.comb += self.start.eq(((data & CONTROL_START) != 0) & ~self.reset)
                for register in SETTINGS:
                    allowed = Const(1) if register.name == "WATCHDOG" else ~self.status.busy
                    target = settings[register.name.lower()]
                    for word in range(register.words):
                        with m.Case((register.address >> 2) + word):
                            for byte in range(4):
                                low = 32 * word + 8 * byte
                                with m.If(strobe[byte] & allowed):
                                    m.d.sync += target[low:low + 8].eq(data.word_select(byte, 8))
        with m.Elif(bus.bready):
            m.d.sync += bus.bvalid.eq(0)

        pending, address = Signal(), Signal(14)
        m.d.comb += bus.arready.eq(~pending & ~bus.rvalid)
        with m.If(bus.arvalid & bus.arready):
            m.d.sync += [pending.eq(1), address.eq(bus.araddr[2:])]
        with m.If(pending):
            m.d.sync += [pending.eq(0), bus.rvalid.eq(1), bus.rdata.eq(0)]
            with m.Switch(address):
                for register in REGISTERS:
                    for word, value in enumerate(self._words(register, settings)):
                        with m.Case((register.address >> 2) + word):
                            m.d.sync += bus.rdata.eq(value)
        with m.Elif(bus.rready):
            m.d.sync += bus.rvalid.eq(0)
        return m

    def _words(self, register: Register, settings: View) -> list[Value]:
        """Values of the 32-bit words of a register."""
        fixed = identification(self.config)
        if register.name in fixed:
            return [Const(fixed[register.name], 32)]
        if register.name == "MAPPING":
            return [Mux(p.compute, p.core, 0) for p in self.placements]
        status = {"CONTROL": Const(0, 32), "STATUS": self.status.as_value(), "ERROR": self.error,
                  "ERROR_INDEX": self.error_index, "INDEX": self.index}
        if register.name in status:
            return [status[register.name]]
        value = self.counters[register.name.lower()] if register.name in COUNTERS else settings[register.name.lower()]
        return [value[32 * word:32 * word + 32] for word in range(register.words)]
