"""cocotb tests of the schedule and of one core alone, against the order of hw/layout.py and the integer model."""

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge

from hw.config import preset
from hw.core import Core
from hw.layout import layer_beats, layer_scale, pack_layer, phase_beats
from hw.ops import Phase, Shape, WriteRequest, bind_op, drain_op, load_op, mac_op
from model.integer import MlpWeights, MxMatrix, mlp
from model.mx import BLOCK, SCALE_NAN
from sim import bench, walk

CONFIG = preset("tiny")


def random_shape(rng) -> tuple[int, int]:
    return rng.randint(1, CONFIG.max_hidden_blocks), rng.randint(1, 3)


def shape_bits(weights: MlpWeights) -> int:
    return bench.pack(Shape, {
        "hidden_blocks": weights.hidden // BLOCK, "intermediate_blocks": weights.intermediate // BLOCK,
        "gate_scale": layer_scale(weights.gate), "up_scale": layer_scale(weights.up),
        "down_scale": layer_scale(weights.down)})


def data_beats(weights: MlpWeights, stream: np.ndarray) -> list[int]:
    hidden, intermediate = weights.hidden, weights.intermediate
    phases = [phase_beats(CONFIG, 2 * intermediate, hidden // BLOCK),
              phase_beats(CONFIG, hidden, intermediate // BLOCK)]
    return walk.weight_beats(CONFIG, stream, phases)


@cocotb.test()
async def schedule_order(dut):
    """Operations and held beats in the order of the layout; a pass drains complete, and before its bank is reused."""
    rng = bench.generator("schedule")
    await bench.start(dut)
    for rows, gap in ((1, 0.0), (1, 0.5), (2, 0.0), (3, 0.4), (CONFIG.locals, 0.0)):
        hidden, intermediate = (BLOCK * blocks for blocks in random_shape(rng))
        weights = walk.random_layer(np.random.default_rng(rng.getrandbits(32)), hidden, intermediate)
        stream = pack_layer(CONFIG, weights)
        await schedule_layer(dut, rng, weights, stream, rows, gap)


async def schedule_layer(dut, rng, weights, stream, rows, gap):
    dut.schedule__rows.value = rows
    dut.schedule__shape.value = shape_bits(weights)
    dut.schedule__loads_done.value = 0
    dut.schedule__start.value = 1
    await RisingEdge(dut.clk)
    dut.schedule__start.value = 0
    feeder = cocotb.start_soon(bench.put(dut, "schedule__i", walk.raw_beats(CONFIG, stream), rng, gap))
    macs, drains, taken, cycle, loads_after, ready = [], [], 0, 0, rng.choice([0, 40]), 0
    while True:
        dut.schedule__loads_done.value = cycle >= loads_after
        now_ready = rng.random() >= gap
        dut.schedule__drain_ready.value = now_ready
        await RisingEdge(dut.clk)
        cycle += 1
        assert cycle < 100_000, f"seed {bench.SEED}: schedule hangs"
        taken += int(dut.schedule__beat_taken.value)
        if int(dut.schedule__mac_valid.value):
            macs.append((cycle, int(dut.schedule__mac.value), int(dut.schedule__beat.value)))
        if int(dut.schedule__drain_valid.value):
            drains.append((cycle, int(dut.schedule__drain.value)))
            phase = bench.unpack(drain_op(CONFIG), drains[-1][1]).phase
            assert phase == Phase.GATE_UP or ready, f"seed {bench.SEED}: a down drain without drain_ready"
        ready = now_ready
        if int(dut.schedule__done.value):
            break
    await feeder
    context = f"seed {bench.SEED}, {weights.hidden}x{weights.intermediate}, {rows} rows"
    assert taken == layer_beats(CONFIG, weights.hidden, weights.intermediate), f"{context}: beats taken"
    beats = data_beats(weights, stream)
    m, d, spans = 0, 0, []
    order = walk.passes(CONFIG, weights.hidden // BLOCK, weights.intermediate // BLOCK, rows)
    for number, expected in enumerate(order):
        for operation, beat in expected.macs:
            want = bench.pack(mac_op(CONFIG), operation)
            assert macs[m][1] == want, f"{context}: MAC {m} is {bench.unpack(mac_op(CONFIG), macs[m][1])}"
            assert macs[m][2] == beats[beat], f"{context}: MAC {m} holds another beat than {beat}"
            m += 1
        for operation in expected.drains:
            want = bench.pack(drain_op(CONFIG), operation)
            assert drains[d][1] == want, f"{context}: drain {d} is {bench.unpack(drain_op(CONFIG), drains[d][1])}"
            d += 1
        first, last = macs[m - len(expected.macs)][0], macs[m - 1][0]
        assert drains[d - len(expected.drains)][0] >= last + Core.MAC_LATENCY, f"{context}: pass {number} drained early"
        spans.append((first, drains[d - 1][0]))
        if number >= 2:
            assert first >= spans[number - 2][1], f"{context}: pass {number} overwrites a bank that is not drained"
        if gap == 0 and rows >= 2 and number < 2:
            count = last - first + 1
            assert count == len(expected.macs), f"{context}: pass {number}: {count} cycles, {len(expected.macs)} MACs"
    assert (m, d) == (len(macs), len(drains)), f"{context}: operations too many"


@cocotb.test()
async def core_layers(dut):
    """Random layers, several local rows, NaN blocks and stalled outputs, bit-exact with the integer model."""
    rng = bench.generator("core")
    await bench.start(dut)
    cases = [(1, 0.0, None), (3, 0.3, None), (2, 0.6, "x"), (2, 0.0, "weight"), (CONFIG.locals // 2, 0.2, None)]
    for rows, stall, nan in cases:
        hidden_blocks, intermediate_blocks = random_shape(rng)
        data = np.random.default_rng(rng.getrandbits(32))
        spread = rng.choice([0, 6, 40])
        weights = walk.random_layer(data, 32 * hidden_blocks, 32 * intermediate_blocks, spread=spread)
        x = walk.random_matrix(data, rows, weights.hidden, 127, spread)
        if nan == "x":
            x.scales[0, 0] = SCALE_NAN
        if nan == "weight":
            weights.down.scales[0, 0] = SCALE_NAN
        await core_layer(dut, rng, weights, x, stall, f"seed {bench.SEED}, {rows} rows, spread {spread}, nan {nan}")


async def core_layer(dut, rng, weights: MlpWeights, x: MxMatrix, stall: float, context: str):
    rows, blocks = x.scales.shape
    clock = dut.clk
    addresses = [4096 * (local + 1) for local in range(rows)]
    dut.core__shape.value = shape_bits(weights)
    dut.core__rows.value = rows
    dut.core__start.value = 1
    await RisingEdge(clock)
    dut.core__start.value = 0
    for local in range(rows):
        dut.core__bind.value = bench.pack(bind_op(CONFIG), {"local": local, "address": addresses[local]})
        dut.core__bind_valid.value = 1
        await RisingEdge(clock)
    dut.core__bind_valid.value = 0
    for block in range(blocks):
        for local in range(rows):
            codes = x.codes[local, block * BLOCK:(block + 1) * BLOCK]
            dut.core__load.value = bench.pack(load_op(CONFIG), {
                "local": local, "block": block, "scale": int(x.scales[local, block]), "codes": [int(c) for c in codes]})
            dut.core__load_valid.value = 1
            await RisingEdge(clock)
    dut.core__load_valid.value = 0
    collector = cocotb.start_soon(bench.get(dut, "core__o", rows * blocks, rng, stall))
    beats = data_beats(weights, pack_layer(CONFIG, weights))
    for _ in range(3):
        await RisingEdge(clock)
    previous = Phase.GATE_UP
    # Operations of locals that the core does not have must not matter: the walk is for one row more.
    for step in walk.passes(CONFIG, blocks, weights.intermediate // BLOCK, min(rows + 1, CONFIG.locals)):
        if step.phase != previous:
            await RisingEdge(clock)
            await RisingEdge(clock)
            while int(dut.core__busy.value):
                await RisingEdge(clock)
            previous = step.phase
        for operation, beat in step.macs:
            while rng.random() < stall / 4:
                dut.core__mac_valid.value = 0
                await RisingEdge(clock)
            dut.core__mac_valid.value = 1
            dut.core__mac.value = bench.pack(mac_op(CONFIG), operation)
            dut.core__beat.value = beats[beat]
            await RisingEdge(clock)
        dut.core__mac_valid.value = 0
        for _ in range(Core.MAC_LATENCY - 1):
            await RisingEdge(clock)
        for operation in step.drains:
            while step.phase == Phase.DOWN and not int(dut.core__drain_ready.value):
                dut.core__drain_valid.value = 0
                await RisingEdge(clock)
            dut.core__drain_valid.value = 1
            dut.core__drain.value = bench.pack(drain_op(CONFIG), operation)
            await RisingEdge(clock)
        dut.core__drain_valid.value = 0
    result = mlp(x, weights)
    got = {}
    for bits in await collector:
        request = bench.unpack(WriteRequest, bits)
        got[request.address] = np.frombuffer(request.data.to_bytes(64, "little"), dtype=np.uint16)
    assert bool(int(dut.core__nan.value)) == bool(result.nan.any()), f"{context}: NaN flag"
    for local in range(rows):
        for block in range(blocks):
            want = result.y[local, block * BLOCK:(block + 1) * BLOCK]
            found = got[addresses[local] + 64 * block]
            wrong = np.flatnonzero(found != want)
            assert not len(wrong), (f"{context}: local {local}, output {block * BLOCK + wrong[0]} is "
                                    f"{found[wrong[0]]:#06x}, not {want[wrong[0]]:#06x}")
