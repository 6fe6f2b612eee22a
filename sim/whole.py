"""The whole accelerator as a cocotb design: its Verilog, and a shell with the AXI IDs that bus models insist on."""

from amaranth.hdl import Shape
from amaranth.lib.wiring import In

from hw.config import AcceleratorConfig
from hw.top import Top
from sim import build
from sim.blocks import write_if_changed
from sim.cocotb_runner import Design


def design(config: AcceleratorConfig) -> Design:
    """Module ``bench`` around the module ``top`` that the simulated board runs."""
    name = f"top-{config.name}"
    path = build.BUILD_ROOT / "verilog" / f"{name}-bench.v"
    return Design(name, (*build.verilog(config), write_if_changed(path, shell(config))), top="bench")


def shell(config: AcceleratorConfig) -> str:
    """Verilog that passes every port of ``top`` through and leaves the IDs 0: it has one transaction order per port."""
    ports = [("clk", "input", 1), ("rst", "input", 1)]
    signature = Top(config).signature
    for path, member, _ in signature.flatten(signature.create()):
        way = "input" if member.flow == In else "output"
        ports.append(("__".join(map(str, path)), way, Shape.cast(member.shape).width))
    ids = [(f"{port}__{channel}id", way) for port in ("data", *(f"weights_{p}" for p in range(config.ports)))
           for channel, way in (("ar", "output"), ("r", "input"), ("aw", "output"), ("b", "input"))
           if port == "data" or channel in ("ar", "r")]
    names = [name for name, _, _ in ports] + [name for name, _ in ids]
    lines = [f"module bench({', '.join(names)});"]
    lines += [f"  {way} [{width - 1}:0] {name};" if width > 1 else f"  {way} {name};" for name, way, width in ports]
    lines += [f"  {way} {name};" for name, way in ids]
    lines += [f"  assign {name} = 1'b0;" for name, way in ids if way == "output"]
    lines.append("  top dut(" + ", ".join(f".{name}({name})" for name, _, _ in ports) + ");")
    return "\n".join([*lines, "endmodule"]) + "\n"
