import numpy as np
from amaranth.sim import Simulator

from hw.activations import Activations
from hw.config import preset
from hw.ops import Phase
from model.mx import BLOCK

TINY = preset("tiny")


def test_random_writes_and_reads_equal_dictionaries():
    seed = 20
    rng = np.random.default_rng(seed)
    dut = Activations(TINY)
    blocks = {Phase.GATE_UP: TINY.max_hidden_blocks, Phase.DOWN: TINY.max_intermediate_blocks}
    ports = {Phase.GATE_UP: (dut.x_valid, dut.x, dut.largest_x),
             Phase.DOWN: (dut.hidden_valid, dut.hidden, dut.largest_hidden)}

    async def bench(ctx):
        memory, largest, pending = {}, {phase: [0] * TINY.locals for phase in Phase}, []
        for cycle in range(800):
            start = bool(rng.random() < 0.01)
            ctx.set(dut.start, start)
            if len(pending) == Activations.LATENCY:
                expected = pending.pop(0)
                if expected is not None:
                    got = ctx.get(dut.o.scale), [ctx.get(dut.o.codes[k]) for k in range(0, BLOCK, 31)]
                    assert got == expected, f"seed {seed}: cycle {cycle}: {got}, expected {expected}"
            phase = Phase(int(rng.integers(2)))
            key = (phase, int(rng.integers(TINY.locals)), int(rng.integers(blocks[phase])))
            ctx.set(dut.phase, phase)
            ctx.set(dut.local, key[1])
            ctx.set(dut.block, key[2])
            pending.append(memory.get(key))
            for phase, (valid, port, _) in ports.items():
                write = bool(rng.random() < 0.7)
                local, block = int(rng.integers(TINY.locals)), int(rng.integers(blocks[phase]))
                scale, codes = int(rng.integers(256)), [int(c) for c in rng.integers(-127, 128, BLOCK)]
                ctx.set(valid, write)
                ctx.set(port, {"local": local, "block": block, "scale": scale, "codes": codes})
                if write:
                    memory[phase, local, block] = scale, codes[::31]
                    if not start:
                        largest[phase][local] = max(largest[phase][local], scale)
            if start:
                largest = {phase: [0] * TINY.locals for phase in Phase}
            await ctx.tick()
            for phase, (_, _, signal) in ports.items():
                got = [ctx.get(signal[local]) for local in range(TINY.locals)]
                assert got == largest[phase], f"seed {seed}: cycle {cycle}: {got}, expected {largest[phase]}"

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
