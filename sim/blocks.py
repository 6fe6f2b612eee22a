"""All blocks of the accelerator side by side in one design, so that one compilation serves every block's testbench.

The ports of block ``b`` appear as ``b__<member>``. AXI masters get the ID signals that the testbench models insist on.
"""

from pathlib import Path

from amaranth.back import verilog
from amaranth.hdl import Module, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import AcceleratorConfig
from hw.core import Core
from hw.csr import Csr
from hw.drs import Drs
from hw.reader import Reader
from hw.schedule import Schedule
from hw.tas import Tas
from hw.weights import WeightStream
from hw.writer import Writer
from sim.build import BUILD_ROOT
from sim.cocotb_runner import Design


class Blocks(wiring.Component):
    """``csr``, ``tas``, ``drs``, ``reader``, ``weights``, ``schedule``, ``core`` and ``writer`` of a configuration."""

    def __init__(self, config: AcceleratorConfig):
        self.blocks: dict[str, wiring.Component] = {
            "csr": Csr(config), "tas": Tas(config), "drs": Drs(config), "reader": Reader(config.fifo_beats),
            "weights": WeightStream(config), "schedule": Schedule(config, Core.MAC_LATENCY), "core": Core(config),
            "writer": Writer(config),
        }
        ids: dict[str, wiring.Member] = {}
        for bus in ("reader__bus", *(f"weights__ports__{p}" for p in range(config.ports))):
            ids |= {f"{bus}__arid": Out(1), f"{bus}__rid": In(1)}
        ids |= {"writer__bus__awid": Out(1), "writer__bus__bid": In(1)}
        super().__init__({name: Out(block.signature) for name, block in self.blocks.items()} | ids)

    def elaborate(self, platform):
        m = Module()
        for name, block in self.blocks.items():
            m.submodules[name] = block
            # Member by member: connect() does not take an interface whose own members are arrays of interfaces.
            outside = block.signature.flatten(getattr(self, name))
            for (_, member, port), (_, _, pin) in zip(outside, block.signature.flatten(block)):
                source, target = (pin, port) if member.flow == Out else (port, pin)
                m.d.comb += Value.cast(target).eq(Value.cast(source))
        return m


def design(config: AcceleratorConfig) -> Design:
    """Verilog of ``Blocks(config)``."""
    name = f"blocks-{config.name}"
    path = BUILD_ROOT / "verilog" / f"{name}.v"
    text = verilog.convert(Blocks(config), name="top", strip_internal_attrs=True)
    return Design(name, (write_if_changed(path, text),))


def write_if_changed(path: Path, text: str) -> Path:
    """Write ``text`` in one step; parallel writers of the same text do not disturb readers."""
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{id(text):x}.tmp")
        scratch.write_text(text)
        scratch.rename(path)
    return path
