import gc
import random
from dataclasses import dataclass

import numpy as np
import pytest
from amaranth.sim import Simulator

from hw.config import AcceleratorConfig, preset
from hw.layout import layer_beats, pack_layer, phase_beats
from hw.ops import Phase
from hw.schedule import SETTLE_CYCLES, Schedule
from model.integer import MlpWeights, MxMatrix
from model.mx import BLOCK
from tests.hw.axi_model import cycle_limit
from tests.hw.test_weights import raw_words

LATENCY = 5
CORE_BUSY_CYCLES = 20


def build(rows: int, cores: int = 4) -> AcceleratorConfig:
    """Configuration with ``rows`` weight rows a beat."""
    return AcceleratorConfig(name=f"rows{rows}", cores=cores, ports=rows // 2, max_hidden_blocks=8,
                             max_intermediate_blocks=16, clock_hz=1, channel_bytes=1 << 20, fifo_beats=128)


def random_weights(seed: int, hidden_blocks: int, intermediate_blocks: int) -> MlpWeights:
    rng = np.random.default_rng(seed)

    def matrix(rows: int, blocks: int) -> MxMatrix:
        return MxMatrix(rng.integers(-127, 128, (rows * BLOCK, blocks * BLOCK), dtype=np.int8),
                        rng.integers(100, 140, (rows * BLOCK, blocks), dtype=np.uint8))

    return MlpWeights(matrix(intermediate_blocks, hidden_blocks), matrix(intermediate_blocks, hidden_blocks),
                      matrix(hidden_blocks, intermediate_blocks))


def phase_matrix(config: AcceleratorConfig, weights: MlpWeights, phase: Phase) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a phase padded to whole groups: codes ``[rows, blocks, 32]`` and scales ``[rows, blocks]``."""
    if phase == Phase.GATE_UP:
        codes = np.stack([weights.gate.codes, weights.up.codes], axis=1).reshape(-1, weights.hidden)
        scales = np.stack([weights.gate.scales, weights.up.scales], axis=1).reshape(-1, weights.hidden // BLOCK)
    else:
        codes, scales = weights.down.codes, weights.down.scales
    pad = -len(codes) % config.rows
    return (np.pad(codes, ((0, pad), (0, 0))).reshape(len(codes) + pad, -1, BLOCK), np.pad(scales, ((0, pad), (0, 0))))


@dataclass
class Expected:
    """Operations in order: mac = (phase, bank, group, local, block, first), drain = (..., block, first, last)."""

    macs: list[tuple]
    beats: list[tuple[np.ndarray, np.ndarray]]
    drains: list[tuple]
    passes: list[tuple[int, int]]
    """MAC and drain operations of each pass."""


def expected_operations(config: AcceleratorConfig, weights: MlpWeights, rows: int) -> Expected:
    """Order of operations written from the layout's rules, without the hardware's counters."""
    expected = Expected([], [], [], [])
    bank = 0
    for phase in Phase:
        codes, scales = phase_matrix(config, weights, phase)
        step = config.rows // 2 if phase == Phase.GATE_UP else config.rows  # values that a group brings
        for first_row in range(0, len(codes), config.pass_rows):
            starts = range(first_row, min(first_row + config.pass_rows, len(codes)), config.rows)
            before = len(expected.macs)
            for block in range(codes.shape[1]):
                for group, row in enumerate(starts):
                    expected.beats.append((codes[row:row + config.rows, block], scales[row:row + config.rows, block]))
                    for local in range(rows):
                        expected.macs.append((phase, bank, group, local, block, int(block == 0)))
            for local in range(rows):
                for group, row in enumerate(starts):
                    value = row // config.rows * step
                    expected.drains.append((phase, bank, group, local, value // BLOCK, int(value % BLOCK == 0),
                                            int((value + step) % BLOCK == 0)))
            expected.passes.append((len(expected.macs) - before, rows * len(starts)))
            bank = 1 - bank
    return expected


def run(config, weights, rows, seed, *, beat_gap=0.0, drain_gap=0.0, loads_after=0, jobs=1):
    """Feed the layer ``jobs`` times; returns for the last job the logs (cycle, ...) and counts of the strobes."""
    rng = random.Random(seed)
    dut = Schedule(config, LATENCY)
    words = raw_words(config, pack_layer(config, weights))
    macs, drains, logs = [], [], {}

    async def feed(ctx):
        for _ in range(jobs):
            for word in words:
                while rng.random() < beat_gap:
                    await ctx.tick()
                ctx.set(dut.i.payload.as_value(), word)
                ctx.set(dut.i.valid, 1)
                await ctx.tick().until(dut.i.ready)
                ctx.set(dut.i.valid, 0)

    async def cores(ctx):
        busy = 0
        while True:
            _, _, valid, phase = await ctx.tick().sample(dut.drain_valid, dut.drain.phase)
            busy = CORE_BUSY_CYCLES if valid and phase == Phase.GATE_UP else max(0, busy - 1)
            ctx.set(dut.cores_busy, busy > 0)
            ctx.set(dut.drain_ready, rng.random() >= drain_gap)

    async def job(ctx):
        ctx.set(dut.rows, rows)
        ctx.set(dut.shape, {"hidden_blocks": weights.hidden // BLOCK,
                            "intermediate_blocks": weights.intermediate // BLOCK})
        strobes = {name: getattr(dut, name) for name in ("beat_taken", "mac_cycle", "stall_weight", "stall_drain")}
        for _ in range(jobs):
            macs.clear()
            drains.clear()
            counts = dict.fromkeys(strobes, 0)
            ctx.set(dut.loads_done, 0)
            ctx.set(dut.start, 1)
            await ctx.tick()
            ctx.set(dut.start, 0)
            cycle, done, ready = 0, False, 1
            while not done:
                ctx.set(dut.loads_done, cycle >= loads_after)
                sampled = await ctx.tick().sample(
                    dut.mac_valid, dut.mac, dut.beat.as_value(), dut.drain_valid, dut.drain, dut.done,
                    dut.drain_ready, *strobes.values())
                mac_valid, mac, beat, drain_valid, drain, done, next_ready, *values = sampled[2:]
                cycle += 1
                if mac_valid:
                    assert cycle > loads_after + 1, f"seed {seed}: MAC in cycle {cycle}, loads after {loads_after}"
                    macs.append((cycle, (mac.phase, mac.bank, mac.group, mac.local, mac.block, mac.first), beat))
                if drain_valid:
                    assert drain.phase == Phase.GATE_UP or ready, f"seed {seed}: drain without drain_ready"
                    drains.append((cycle, (drain.phase, drain.bank, drain.group, drain.local, drain.block,
                                           drain.first, drain.last)))
                ready = next_ready
                for name, value in zip(strobes, values):
                    counts[name] += value
            assert drains and drains[-1][0] == cycle - 1, f"seed {seed}: done is not right behind the last drain"
            assert not ctx.get(dut.busy) and not ctx.get(dut.error_stream), f"seed {seed}"
        logs.update(counts)

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(cycle_limit(20_000), background=True)
    sim.add_testbench(feed)
    sim.add_testbench(cores, background=True)
    sim.add_testbench(job)
    sim.run()
    return macs, drains, logs


def compare(config, weights, rows, seed, macs, drains) -> Expected:
    """Check every operation and every held beat against the expected order."""
    expected = expected_operations(config, weights, rows)
    for name, got, want in (("MAC", macs, expected.macs), ("drain", drains, expected.drains)):
        wrong = next((i for i, (a, b) in enumerate(zip(got, want)) if a[1] != b), None)
        assert wrong is None, f"seed {seed}: {name} operation {wrong} is {got[wrong][1]}, expected {want[wrong]}"
        assert len(got) == len(want), f"seed {seed}: {len(got)} {name} operations, expected {len(want)}"
    for i, (_, _, beat) in enumerate(macs):
        codes, scales = expected.beats[i // rows]
        want = int.from_bytes(codes.astype(np.int8).tobytes() + scales.tobytes(), "little")
        assert beat == want, f"seed {seed}: weight beat of MAC operation {i} ({expected.macs[i]}) differs"
    return expected


def check_hazards(expected: Expected, macs, drains, seed) -> None:
    """Drains see finished sums, banks are not overwritten early, the down phase sees the whole hidden vector."""
    mac_at = drain_at = 0
    spans = []
    for mac_count, drain_count in expected.passes:
        spans.append((macs[mac_at][0], macs[mac_at + mac_count - 1][0],
                      drains[drain_at][0], drains[drain_at + drain_count - 1][0]))
        mac_at, drain_at = mac_at + mac_count, drain_at + drain_count
    for i, (first_mac, last_mac, first_drain, _) in enumerate(spans):
        assert first_drain >= last_mac + LATENCY, f"seed {seed}: pass {i} drained before its sums were complete"
        if i >= 2:
            assert first_mac >= spans[i - 2][3], f"seed {seed}: pass {i} overwrote the bank of pass {i - 2}"
    down = next(cycle for cycle, operation, _ in macs if operation[0] == Phase.DOWN)
    hidden = max(cycle for cycle, operation in drains if operation[0] == Phase.GATE_UP)
    assert down >= hidden + CORE_BUSY_CYCLES, f"seed {seed}: down phase at {down}, last gate/up drain at {hidden}"


@pytest.mark.parametrize("seed", range(10))
def test_random_layers(seed):
    rng = random.Random(seed)
    config = build(rng.choice([2, 4, 8, 16, 64]))
    limit = 4 if config.rows > 2 else 2
    shape = rng.randint(1, limit), rng.randint(1, limit)
    rows = rng.choice([1, 1, 2, 3, config.locals])
    weights = random_weights(seed, *shape)
    macs, drains, counts = run(config, weights, rows, seed, beat_gap=rng.choice([0, 0.3, 0.7]),
                               drain_gap=rng.choice([0, 0.5, 0.9]), loads_after=rng.choice([0, 50]), jobs=1 + seed % 2)
    expected = compare(config, weights, rows, seed, macs, drains)
    check_hazards(expected, macs, drains, seed)
    assert counts["beat_taken"] == layer_beats(config, weights.hidden, weights.intermediate), f"seed {seed}"
    assert counts["mac_cycle"] == len(macs), f"seed {seed}"


@pytest.mark.parametrize("config,shape,rows", [
    (preset("tiny"), (2, 2), 1), (preset("tiny"), (2, 2), 2), (build(8), (3, 5), 1), (build(8), (2, 5), 2),
    (build(8), (4, 3), 8), (build(64), (5, 16), 1), (build(64), (7, 9), 2), (build(64), (2, 9), 3),
])
def test_no_bubbles(config, shape, rows):
    """With beats always there, a phase takes its data beats * rows cycles, plus one a chunk if rows is 1, not more."""
    weights = random_weights(1, *shape)
    macs, drains, counts = run(config, weights, rows, 1)
    expected = compare(config, weights, rows, 1, macs, drains)
    check_hazards(expected, macs, drains, 1)
    for phase, row_count, blocks in ((Phase.GATE_UP, 2 * weights.intermediate, shape[0]),
                                     (Phase.DOWN, weights.hidden, shape[1])):
        cycles = [cycle for cycle, operation, _ in macs if operation[0] == phase]
        beats = phase_beats(config, row_count, blocks)
        data = len(cycles) // rows
        # The first scale beat is taken before the first operation.
        assert cycles[-1] - cycles[0] + 1 == data * rows + (beats - data - 1 if rows == 1 else 0)
    assert macs[0][0] == 3  # scale beat in cycle 1, data beat in cycle 2
    assert drains[0][0] == macs[expected.passes[0][0] - 1][0] + LATENCY
    assert drains[-1][0] == macs[-1][0] + LATENCY + expected.passes[-1][1] - 1
    assert counts["stall_weight"] == 0
    last_gate_up = max(cycle for cycle, operation in drains if operation[0] == Phase.GATE_UP)
    first_down = min(cycle for cycle, operation, _ in macs if operation[0] == Phase.DOWN)
    assert first_down == last_gate_up + CORE_BUSY_CYCLES + 2  # the model of the cores registers its busy signal


def test_single_block_reduction_waits_for_its_bank():
    """With one block a pass is as short as its drain, which starts later: pass p + 2 waits exactly for pass p."""
    config = build(8)
    weights = random_weights(2, 1, 4)
    macs, drains, counts = run(config, weights, 2, 2)
    expected = compare(config, weights, 2, 2, macs, drains)
    check_hazards(expected, macs, drains, 2)
    per_pass = 2 * config.groups
    gate_up = [cycle for cycle, operation, _ in macs if operation[0] == Phase.GATE_UP]
    assert gate_up[2 * per_pass] == drains[per_pass - 1][0]
    assert gate_up[per_pass] == gate_up[per_pass - 1] + 1
    assert counts["stall_drain"] > 0


def test_counters_cover_every_cycle():
    """Between the first and the last MAC each cycle computes, takes a scale beat, or counts as one kind of stall."""
    config = build(8)
    weights = random_weights(3, 2, 3)
    macs, _, counts = run(config, weights, 1, 3, beat_gap=0.4)
    scale_beats = counts["beat_taken"] - counts["mac_cycle"]
    # The strobes look one cycle ahead of the registered operations; two cycles lie before the first one.
    unused = macs[-1][0] - 1 - counts["mac_cycle"] - scale_beats - counts["stall_weight"] - counts["stall_drain"]
    # Between the phases, waiting for the cores with no beat at hand is neither kind of stall.
    down = next(i for i, (_, operation, _) in enumerate(macs) if operation[0] == Phase.DOWN)
    assert 0 <= unused <= macs[down][0] - macs[down - 1][0] - 1


def test_settle_covers_slow_busy_signal():
    """The down phase does not start while ``cores_busy`` may still be on its way."""
    config = build(64)
    weights = random_weights(4, 1, 1)
    dut = Schedule(config, LATENCY)
    words = raw_words(config, pack_layer(config, weights))

    async def feed(ctx):
        for word in words:
            ctx.set(dut.i.payload.as_value(), word)
            ctx.set(dut.i.valid, 1)
            await ctx.tick().until(dut.i.ready)
        ctx.set(dut.i.valid, 0)

    async def testbench(ctx):
        ctx.set(dut.rows, 1)
        ctx.set(dut.shape, {"hidden_blocks": 1, "intermediate_blocks": 1})
        ctx.set(dut.loads_done, 1)
        ctx.set(dut.start, 1)
        await ctx.tick()
        ctx.set(dut.start, 0)
        while not ctx.get(dut.drain_valid):
            await ctx.tick()
        for _ in range(SETTLE_CYCLES):
            await ctx.tick()
            assert not ctx.get(dut.mac_valid)
        ctx.set(dut.cores_busy, 1)
        for _ in range(30):
            await ctx.tick()
            assert not ctx.get(dut.mac_valid)
        ctx.set(dut.cores_busy, 0)
        await ctx.tick()
        assert ctx.get(dut.mac_valid)

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(cycle_limit(20_000), background=True)
    sim.add_testbench(feed, background=True)
    sim.add_testbench(testbench)
    sim.run()


def test_starved_then_flush_then_full_job():
    """A stream that ends early raises ``error_stream``; after ``flush`` the next job is complete."""
    config = build(8)
    weights = random_weights(5, 1, 2)
    words = raw_words(config, pack_layer(config, weights))
    dut = Schedule(config, LATENCY)

    async def feed(ctx, count):
        for word in words[:count]:
            ctx.set(dut.i.payload.as_value(), word)
            ctx.set(dut.i.valid, 1)
            await ctx.tick().until(dut.i.ready)
        ctx.set(dut.i.valid, 0)

    async def start(ctx):
        ctx.set(dut.start, 1)
        await ctx.tick()
        ctx.set(dut.start, 0)

    async def testbench(ctx):
        ctx.set(dut.rows, 2)
        ctx.set(dut.shape, {"hidden_blocks": 1, "intermediate_blocks": 2})
        ctx.set(dut.loads_done, 1)
        ctx.set(dut.drain_ready, 1)
        await start(ctx)
        await feed(ctx, len(words) - 1)
        assert not ctx.get(dut.error_stream)
        ctx.set(dut.starved, 1)
        assert ctx.get(dut.error_stream)
        ctx.set(dut.flush, 1)
        await ctx.tick()
        ctx.set(dut.flush, 0)
        assert not ctx.get(dut.error_stream) and not ctx.get(dut.busy) and not ctx.get(dut.mac_valid)
        ctx.set(dut.starved, 0)
        await start(ctx)
        await feed(ctx, len(words))
        ctx.set(dut.starved, 1)
        assert not ctx.get(dut.error_stream)
        await ctx.tick().until(dut.done)
        assert not ctx.get(dut.busy)

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(cycle_limit(20_000), background=True)
    sim.add_testbench(testbench)
    sim.run()


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
def test_mac_latency_too_short():
    with pytest.raises(ValueError, match="mac_latency must be at least 2 cycles, not 1"):
        Schedule(build(8), 1)
    gc.collect()  # the half-made component warns when it goes: here, where that is ignored
