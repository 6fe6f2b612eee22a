"""Cores are identical: one Verilog module for all of them, or the core itself where it is simulated in Amaranth."""

from amaranth.hdl import ClockSignal, Instance, Module, ResetInserter, ResetSignal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import AcceleratorConfig
from hw.core import Core, core_members

MODULE = "fastcar_core"
"""Verilog name of the core."""


def replica_members(config: AcceleratorConfig) -> dict:
    """Members of a core and ``reset``, which clears its registers."""
    return {**core_members(config), "reset": In(1)}


class CoreModule(wiring.Component):
    """A core with a ``reset`` input beside the one of its clock domain."""

    def __init__(self, config: AcceleratorConfig):
        self.config = config
        super().__init__(replica_members(config))

    def elaborate(self, platform):
        m = Module()
        core = Core(self.config)
        m.submodules.core = ResetInserter(self.reset)(core)
        for name, member in core.signature.members.items():
            inner, outer = getattr(core, name), getattr(self, name)
            if member.is_signature:
                wiring.connect(m, inner, wiring.flipped(outer))
            else:
                m.d.comb += outer.eq(inner) if member.flow == Out else inner.eq(outer)
        return m


class CoreInstance(wiring.Component):
    """The same interface as a reference to the Verilog module ``MODULE``, which is :class:`CoreModule` written out."""

    def __init__(self, config: AcceleratorConfig):
        self.config = config
        super().__init__(replica_members(config))

    def elaborate(self, platform):
        m = Module()
        ports = {}
        for path, member, value in self.signature.flatten(self):
            ports[("o_" if member.flow == Out else "i_") + "__".join(map(str, path))] = Value.cast(value)
        m.submodules.instance = Instance(MODULE, i_clk=ClockSignal(), i_rst=ResetSignal(), **ports)
        return m
