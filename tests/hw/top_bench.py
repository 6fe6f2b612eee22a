"""A whole accelerator in Amaranth's simulator with memory behind its ports: builds jobs, runs them, reads registers."""

from dataclasses import dataclass, field

import numpy as np
from amaranth.sim import Simulator

from hw.config import AcceleratorConfig
from hw.isa import INSTRUCTION_BYTES, Error, Instruction, Opcode
from hw.layout import layer_beats, output_bytes, pack_activations, pack_layer, scores_bytes
from hw.registers import BY_NAME, CONTROL_RESET, CONTROL_START, STATUS_DONE, STATUS_ERROR, address
from hw.top import Top
from model.integer import MlpWeights, MxMatrix
from tests.hw.axi_model import FAST, AxiMemory, Timing

PROGRAM, SCORES, INPUTS, OUTPUTS, WEIGHTS = 0x20000, 0x24000, 0x28000, 0x30000, 0x4000
"""Where a bench job keeps its parts; WEIGHTS is an offset in every port's region."""
LIMIT_CYCLES = 60_000


@dataclass
class Layer:
    """A random layer with inputs and scores of its slots."""

    seed: int
    hidden: int
    intermediate: int
    slots: tuple[int, ...]
    heads: int = 5
    weights: MlpWeights = field(init=False)
    x: MxMatrix = field(init=False)
    scores: np.ndarray = field(init=False)

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)

        def matrix(rows, columns):
            spread = np.exp2(rng.integers(-6, 6, (rows, columns // 32))).repeat(32, axis=1)
            return MxMatrix.from_float(rng.standard_normal((rows, columns)) * spread)

        self.weights = MlpWeights(matrix(self.intermediate, self.hidden), matrix(self.intermediate, self.hidden),
                                  matrix(self.hidden, self.intermediate))
        self.x = matrix(len(self.slots), self.hidden)
        self.scores = rng.integers(-1 << 31, 1 << 31, (len(self.slots), self.heads)).astype(np.int32)

    def program(self, config: AcceleratorConfig) -> list[Instruction]:
        """One job: SCORES for the TAS, then all LOADs and STOREs."""
        stride = pack_activations(self.x).shape[1]
        beats = layer_beats(config, self.hidden, self.intermediate)
        w = self.weights
        return [
            Instruction(Opcode.LAYER, hidden_blocks=self.hidden // 32, intermediate_blocks=self.intermediate // 32,
                        gate_scale=w.gate.largest_scale, up_scale=w.up.largest_scale, down_scale=w.down.largest_scale),
            Instruction(Opcode.WEIGHTS, count=beats, offset=WEIGHTS),
            *(Instruction(Opcode.SCORES, slot=s, count=self.heads, offset=row * scores_bytes(self.heads))
              for row, s in enumerate(self.slots)),
            Instruction(Opcode.DECIDE),
            *(Instruction(Opcode.LOAD, slot=s, offset=row * stride) for row, s in enumerate(self.slots)),
            *(Instruction(Opcode.STORE, slot=s, offset=row * output_bytes(self.hidden))
              for row, s in enumerate(self.slots)),
            Instruction(Opcode.RUN),
            Instruction(Opcode.END),
        ]

    def settings(self, **changes: int) -> dict[str, int]:
        return {"ACTIVE": sum(1 << s for s in self.slots), "SCORES_BASE": SCORES, "INPUT_BASE": INPUTS,
                "OUTPUT_BASE": OUTPUTS, "PROGRAM_BASE": PROGRAM, "WATCHDOG": 5000} | changes


class Bench:
    """``run`` an async script ``script(board)`` against a fresh accelerator; ``board`` is this object."""

    def __init__(self, config: AcceleratorConfig, seed: int, timing: Timing = FAST):
        self.config = config
        self.top = Top(config)
        self.memory = AxiMemory(seed, timing)
        self.cycles = 0
        self._written: dict[str, int] = {}

    def store_layer(self, layer: Layer) -> None:
        """Put weights, inputs and scores where ``Layer.program`` expects them, and a pattern into the outputs."""
        for port, stream in enumerate(pack_layer(self.config, layer.weights)):
            self.memory.store(port * self.config.channel_bytes + WEIGHTS, stream.tobytes())
        self.memory.store(INPUTS, pack_activations(layer.x).tobytes())
        size = scores_bytes(layer.heads)
        for row, scores in enumerate(layer.scores):
            filler = np.full(size // 4 - layer.heads, -77, dtype=np.int32)
            self.memory.store(SCORES + row * size, np.concatenate([scores, filler]).tobytes())
        self.memory.store(OUTPUTS, b"\xA5" * (len(layer.slots) * output_bytes(layer.hidden)))

    def store_program(self, program: list[Instruction | bytes]) -> int:
        """Write the program, poison behind it; returns the number of instructions."""
        code = b"".join(i if isinstance(i, bytes) else i.encode() for i in program)
        self.memory.store(PROGRAM, code + b"\xFF" * 256)
        return len(code) // INSTRUCTION_BYTES

    def output(self, layer: Layer, row: int) -> np.ndarray:
        size = output_bytes(layer.hidden)
        return np.frombuffer(self.memory.load(OUTPUTS + row * size, size), dtype=np.uint16)[:layer.hidden]

    def run(self, script) -> None:
        sim = Simulator(self.top)
        sim.add_clock(1e-8)
        sim.add_testbench(self.memory.read_slave(self.top.data), background=True)
        sim.add_testbench(self.memory.write_slave(self.top.data), background=True)
        for port in range(self.config.ports):
            bus = getattr(self.top, f"weights_{port}")
            sim.add_testbench(self.memory.read_slave(bus), background=True)

        async def testbench(ctx):
            self._ctx = ctx
            await script(self)

        sim.add_testbench(testbench)
        sim.run()

    async def tick(self) -> None:
        await self._ctx.tick()

    async def read(self, name: str, word: int = 0) -> int:
        ctx, bus = self._ctx, self.top.csr
        ctx.set(bus.araddr, address(name, word))
        ctx.set(bus.arvalid, 1)
        await ctx.tick().until(bus.arready)
        ctx.set(bus.arvalid, 0)
        ctx.set(bus.rready, 1)
        data, = await ctx.tick().sample(bus.rdata).until(bus.rvalid)
        ctx.set(bus.rready, 0)
        return data

    async def counter(self, name: str) -> int:
        return await self.read(name) | await self.read(name, 1) << 32

    async def write(self, name: str, value: int) -> None:
        ctx, bus = self._ctx, self.top.csr
        self._written[name] = value
        for word in range(BY_NAME[name].words):
            ctx.set(bus.awaddr, address(name, word))
            ctx.set(bus.wdata, value >> 32 * word & 0xFFFFFFFF)
            ctx.set(bus.wstrb, 0xF)
            ctx.set(bus.awvalid, 1)
            ctx.set(bus.wvalid, 1)
            ctx.set(bus.bready, 1)
            await ctx.tick().until(bus.wready)
            ctx.set(bus.awvalid, 0)
            ctx.set(bus.wvalid, 0)
            await ctx.tick().until(bus.bvalid)
            ctx.set(bus.bready, 0)

    async def job(self, program: list[Instruction | bytes], settings: dict[str, int]) -> None:
        """Start a job and wait for the interrupt."""
        count = self.store_program(program)
        for name, value in ({"PROGRAM_COUNT": count} | settings).items():
            if self._written.get(name) != value:
                await self.write(name, value)
        await self.write("CONTROL", CONTROL_START)
        for self.cycles in range(LIMIT_CYCLES):
            if self._ctx.get(self.top.interrupt):
                return
            await self._ctx.tick()
        raise AssertionError(f"seed {self.memory.seed}: no interrupt within {LIMIT_CYCLES} cycles")

    async def expect_done(self) -> None:
        status, error, index = await self.read("STATUS"), await self.read("ERROR"), await self.read("ERROR_INDEX")
        assert status & ~8 == STATUS_DONE, f"status {status:#x}, error {Error(error).name} at instruction {index}"

    async def expect_error(self, code: Error, index: int) -> None:
        """Check the halt, then reset."""
        status = await self.read("STATUS")
        got = Error(await self.read("ERROR")), await self.read("ERROR_INDEX")
        assert (status, got) == (STATUS_ERROR, (code, index)), f"status {status:#x}, error {got}"
        await self.write("CONTROL", CONTROL_RESET)
        assert await self.read("STATUS") == 0 and await self.read("ERROR") == 0
        assert not self._ctx.get(self.top.interrupt)
