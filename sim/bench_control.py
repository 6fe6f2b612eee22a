"""cocotb tests of the control blocks alone: registers, TAS comparator, DRS mapping."""

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge
from cocotbext.axi import AxiLiteBus, AxiLiteMaster

from hw.config import SLOTS, preset
from hw.csr import Settings
from hw.drs import Drs
from hw.identification import identification
from hw.registers import BY_NAME, COUNTERS, address
from hw.tas import LANES, Verdict, score_request
from sim import bench

CONFIG = preset("tiny")


async def csr_master(dut, rng, stall) -> AxiLiteMaster:
    await bench.start(dut)
    master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "csr__bus_"), dut.clk, dut.rst)
    write, read = master.write_if, master.read_if
    for channel in (write.aw_channel, write.w_channel, write.b_channel, read.ar_channel, read.r_channel):
        channel.set_pause_generator(bench.stalls(rng, stall))
    for _ in range(2):
        await RisingEdge(dut.clk)
    return master


@cocotb.test()
async def csr_registers(dut):
    """Identification, read back of every setting with byte strobes, unlisted addresses, writes while busy."""
    rng = bench.generator("csr")
    master = await csr_master(dut, rng, 0.3)
    for name, value in identification(CONFIG).items():
        assert await master.read_dword(address(name)) == value, f"{name} should read {value:#x}"
    settings = [r for r in BY_NAME.values() if r.access == "rw" and r.name != "CONTROL"]
    shadow = {r.name: 0 for r in settings} | {"WATCHDOG": await master.read_dword(address("WATCHDOG"))}
    for _ in range(60):
        register = rng.choice(settings)
        first = rng.randrange(4 * register.words)
        size = rng.randint(1, min(4 * register.words - first, 4 - first % 4))
        data = rng.randbytes(size)
        await master.write(register.address + first, data)
        mask = ((1 << 8 * size) - 1) << 8 * first
        shadow[register.name] = shadow[register.name] & ~mask | int.from_bytes(data, "little") << 8 * first
        got = int.from_bytes((await master.read(register.address, 4 * register.words)).data, "little")
        want = shadow[register.name]
        assert got == want, f"seed {bench.SEED}: {register.name} is {got:#x}, not {want:#x}"
    values = bench.unpack(Settings, int(dut.csr__settings.value))
    for register in settings:
        got = int(values[register.name.lower()]) & ((1 << 32 * register.words) - 1)
        assert got == shadow[register.name], f"settings.{register.name.lower()}"
    listed = {r.address + 4 * w for r in BY_NAME.values() for w in range(r.words)}
    for unlisted in (0x00C, 0x034, 0x04C + 0x48, 0x300, 0x1000, 0xFFFC):
        if unlisted not in listed:
            assert await master.read_dword(unlisted) == 0, f"unlisted address {unlisted:#x}"
    dut.csr__status.value = 1  # busy: the job's settings stay as they are
    await master.write_dword(address("ACTIVE"), ~shadow["ACTIVE"] & 0xFFFFFFFF)
    assert await master.read_dword(address("ACTIVE")) == shadow["ACTIVE"]


@cocotb.test()
async def csr_pulses(dut):
    """CONTROL makes one-cycle pulses; counters read in two words."""
    rng = bench.generator("pulses")
    master = await csr_master(dut, rng, 0.2)
    seen = {"start": 0, "reset": 0}

    async def watch():
        while True:
            await RisingEdge(dut.clk)
            seen["start"] += int(dut.csr__start.value)
            seen["reset"] += int(dut.csr__reset.value)

    cocotb.start_soon(watch())
    await master.write_dword(address("CONTROL"), 1)
    await master.write_dword(address("CONTROL"), 2)
    await master.write_dword(address("CONTROL"), 3)
    assert seen == {"start": 1, "reset": 2}, f"{seen}: reset wins over start"
    counters = [rng.getrandbits(64) for _ in COUNTERS]
    dut.csr__counters.value = sum(value << 64 * i for i, value in enumerate(counters))
    for name, value in zip(COUNTERS, counters):
        assert await master.read_qword(address(name)) == value, f"counter {name}"


@cocotb.test()
async def tas_sums(dut):
    """Random slots, counts and stalls: exact sums against the threshold, three cycles after the last beat."""
    rng = bench.generator("tas")
    await bench.start(dut)
    for threshold, stall in ((0, 0.0), (-(1 << 20), 0.3), (5, 0.6), (16 * (2**31 - 1), 0.0)):
        dut.tas__threshold.value = threshold & (1 << 64) - 1
        requests, beats, expected, finals = [], [], [], []
        for _ in range(40):
            slot, count = rng.randrange(SLOTS), rng.choice([1, CONFIG.max_heads, rng.randint(1, CONFIG.max_heads)])
            scores = [rng.choice([rng.randint(-100, 100), 2**31 - 1, -(2**31)]) for _ in range(count)]
            if rng.random() < 0.3:  # sums at the threshold and next to it
                scores = [0] * count
                scores[-1] = max(-(2**31), min(2**31 - 1, threshold + rng.choice([-1, 0, 1])))
            requests.append(bench.pack(score_request(CONFIG), {"slot": slot, "count": count}))
            padded = scores + [rng.randint(-(2**31), 2**31 - 1) for _ in range(-count % LANES)]  # lanes to be ignored
            for first in range(0, len(padded), LANES):
                words = np.array(padded[first:first + LANES], dtype=np.int32)
                beats.append(int.from_bytes(words.tobytes(), "little"))
            finals.append(len(beats) - 1)
            expected.append((slot, int(sum(scores) >= threshold)))
        taken, verdicts = {}, []

        async def watch(verdicts=verdicts):
            while True:
                await RisingEdge(dut.clk)
                if int(dut.tas__verdict_valid.value):
                    verdict = bench.unpack(Verdict, int(dut.tas__verdict.value))
                    verdicts.append((bench.now(), verdict.slot, verdict.replay))

        watcher = cocotb.start_soon(watch())
        feeder = cocotb.start_soon(bench.put(dut, "tas__requests", requests, rng, stall))
        await bench.put(dut, "tas__i", beats, rng, stall, each=lambda i, taken=taken: taken.__setitem__(i, bench.now()))
        await feeder
        for _ in range(8):
            await RisingEdge(dut.clk)
        watcher.cancel()
        assert [v[1:] for v in verdicts] == expected, f"seed {bench.SEED}, threshold {threshold}"
        late = [v[0] - taken[final] for v, final in zip(verdicts, finals)]
        assert set(late) == {3}, f"seed {bench.SEED}: verdicts {sorted(set(late))} cycles after the last beat, not 3"
        if stall == 0:
            span = taken[len(beats) - 1] - taken[0] + 1
            assert span == len(beats), f"{span} cycles for {len(beats)} beats: one beat a cycle"


def interesting_masks(rng) -> list[int]:
    """None, all, each single slot, each prefix and suffix, alternations, and random ones of every density."""
    full = (1 << SLOTS) - 1
    masks = [0, full, 0x55555555, 0xAAAAAAAA, 0x0F0F0F0F, 0xFFFF0000, 0x80000001]
    masks += [1 << slot for slot in range(SLOTS)] + [full ^ 1 << slot for slot in range(SLOTS)]
    masks += [(1 << n) - 1 for n in range(SLOTS)] + [full ^ (1 << n) - 1 for n in range(SLOTS)]
    for density in range(1, 10):
        masks += [sum((rng.random() < density / 10) << slot for slot in range(SLOTS)) for _ in range(20)]
    rng.shuffle(masks)
    return masks


@cocotb.test()
async def drs_masks(dut):
    """Mapping is the rank modulo the cores, the busiest core has ceil(rows / cores), latency is two cycles."""
    rng = bench.generator("drs")
    await bench.start(dut)
    cores = CONFIG.cores
    blocks = Drs(CONFIG)
    layouts = {name: blocks.signature.members[name].shape for name in ("placements", "core_rows")}
    for mask in interesting_masks(rng):
        dut.drs__compute.value = mask
        dut.drs__decide.value = 1
        await RisingEdge(dut.clk)
        dut.drs__decide.value = 0
        dut.drs__compute.value = rng.getrandbits(SLOTS)
        await RisingEdge(dut.clk)
        assert not int(dut.drs__done.value), f"mask {mask:#010x}: done one cycle early"
        assert int(dut.drs__index.value) == mask, f"mask {mask:#010x}: Index Register after one cycle"
        await RisingEdge(dut.clk)
        assert int(dut.drs__done.value), f"mask {mask:#010x}: done two cycles after decide"
        placements = bench.unpack(layouts["placements"], int(dut.drs__placements.value))
        rank = 0
        for slot in range(SLOTS):
            computes = mask >> slot & 1
            assert placements[slot].compute == computes, f"mask {mask:#010x}, slot {slot}"
            if computes:
                where = placements[slot].core, placements[slot].local
                assert where == (rank % cores, rank // cores), f"mask {mask:#010x}, slot {slot}: {where}"
                rank += 1
        rows = bench.unpack(layouts["core_rows"], int(dut.drs__core_rows.value))
        expected = [len(range(core, rank, cores)) for core in range(cores)]
        assert [rows[core] for core in range(cores)] == expected, f"mask {mask:#010x}: rows of the cores"
        assert int(dut.drs__total.value) == rank, f"mask {mask:#010x}: total rows"
        assert int(dut.drs__busiest.value) == -(-rank // cores), f"mask {mask:#010x}: rows of the busiest core"
