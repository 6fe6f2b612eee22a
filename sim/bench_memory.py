"""cocotb tests of the memory side alone: reader, weight stream, writer, against bus models that stall at random."""

import cocotb
from amaranth.lib.data import StructLayout
from cocotb.triggers import RisingEdge
from cocotbext.axi import AxiRamRead, AxiRamWrite, AxiReadBus, AxiWriteBus

from hw.config import BURST_BEATS, PORT_BYTES, preset
from hw.ops import ReadRequest, WriteRequest
from hw.weights import WeightRequest
from sim import bench

CONFIG = preset("tiny")
PAGE = 4096


def random_beats(rng) -> int:
    return rng.choice([1, 1, 2, BURST_BEATS, BURST_BEATS + 1, rng.randint(1, 200)])


def read_ram(dut, prefix: str, rng, stall: float) -> AxiRamRead:
    ram = AxiRamRead(AxiReadBus.from_prefix(dut, prefix), dut.clk, dut.rst, size=1 << 20)
    ram.write(0, rng.randbytes(1 << 20))
    ram.ar_channel.set_pause_generator(bench.stalls(rng, stall))
    ram.r_channel.set_pause_generator(bench.stalls(rng, stall))
    return ram


async def watch_addresses(dut, prefix: str) -> None:
    """Bursts stay in their 4 KiB page, and an address is held until it is taken."""
    pins = [bench.signal(dut, f"{prefix}__{pin}") for pin in ("araddr", "arlen")]
    valid, ready = (bench.signal(dut, f"{prefix}__{pin}") for pin in ("arvalid", "arready"))
    held = None
    while True:
        await RisingEdge(dut.clk)
        now = tuple(int(pin.value) for pin in pins) if int(valid.value) else None
        assert held is None or now == held, f"seed {bench.SEED}: {prefix} changed its address while ARREADY was low"
        held = None if int(ready.value) else now
        if now:
            end = now[0] % PAGE + (now[1] + 1) * PORT_BYTES
            assert end <= PAGE, f"seed {bench.SEED}: {prefix} burst {now[0]:#x} + {now[1] + 1} beats crosses 4 KiB"


@cocotb.test()
async def reader_random(dut):
    """Requests of every length at every offset in a page; all beats in order, ``last`` on the last of each request."""
    rng = bench.generator("reader")
    await bench.start(dut)
    ram = read_ram(dut, "reader__bus_", rng, 0.0)
    watcher = cocotb.start_soon(watch_addresses(dut, "reader__bus"))
    for stall, take in ((0.0, 0.0), (0.4, 0.0), (0.0, 0.5), (0.6, 0.6)):
        for channel in (ram.ar_channel, ram.r_channel):
            channel.set_pause_generator(bench.stalls(rng, stall))
        requests = []
        for _ in range(12):
            beats = random_beats(rng)
            requests.append((rng.randrange(0, (1 << 20) - beats * PORT_BYTES, PORT_BYTES), beats))
        packed = [bench.pack(ReadRequest, {"address": a, "beats": n}) for a, n in requests]
        feeder = cocotb.start_soon(bench.put(dut, "reader__requests", packed, rng, 0.2))
        got = await bench.get(dut, "reader__o", sum(n for _, n in requests), rng, take)
        await feeder
        index = 0
        for address, beats in requests:
            for beat in range(beats):
                at = address + beat * PORT_BYTES
                want = int.from_bytes(ram.read(at, PORT_BYTES), "little") | (beat == beats - 1) << 512
                assert got[index] == want, f"seed {bench.SEED}: beat {beat} of {beats} at {address:#x}"
                index += 1
    for _ in range(4):
        await RisingEdge(dut.clk)
    assert not int(dut.reader__busy.value) and not int(dut.reader__error.value), "busy or error after the last beat"
    watcher.cancel()


@cocotb.test()
async def reader_rate(dut):
    """One beat a cycle once the first has come, across requests and pages."""
    rng = bench.generator("rate")
    await bench.start(dut)
    # This memory answers burst after burst without a gap and needs no address of the next one before.
    bus = {pin: bench.signal(dut, f"reader__bus__{pin}") for pin in ("arvalid", "arready", "arlen", "rvalid", "rready",
                                                                     "rlast", "rdata", "rresp")}
    bus["arready"].value = 1
    beats: list[bool] = []

    async def memory():
        while True:
            await RisingEdge(dut.clk)
            if int(bus["arvalid"].value):
                beats.extend([False] * int(bus["arlen"].value) + [True])
            if int(bus["rvalid"].value):
                beats.pop(0)
            bus["rvalid"].value = bool(beats)
            bus["rlast"].value = bool(beats) and beats[0]

    cocotb.start_soon(memory())
    total = 300
    requests = ((64 * 33, 100), (0, 1), (4096, total - 101))
    packed = [bench.pack(ReadRequest, {"address": address, "beats": count}) for address, count in requests]
    cocotb.start_soon(bench.put(dut, "reader__requests", packed, rng))
    dut.reader__o__ready.value = 1
    arrivals, cycle = [], 0
    while len(arrivals) < total:
        await RisingEdge(dut.clk)
        cycle += 1
        assert cycle < 2000, f"only {len(arrivals)} of {total} beats"
        if int(dut.reader__o__valid.value):
            arrivals.append(cycle)
    assert arrivals[-1] - arrivals[0] == total - 1, f"{arrivals[-1] - arrivals[0] + 1} cycles for {total} beats"


@cocotb.test()
async def reader_flush(dut):
    """A flush drops what is under way and leaves the reader fit for the next request."""
    rng = bench.generator("flush")
    await bench.start(dut)
    ram = read_ram(dut, "reader__bus_", rng, 0.3)
    for trial in range(6):
        request = bench.pack(ReadRequest, {"address": 64 * rng.randrange(1000), "beats": 150})
        await bench.put(dut, "reader__requests", [request], rng)
        await bench.get(dut, "reader__o", rng.randint(0, 20), rng, 0.2)
        dut.reader__flush.value = 1
        await RisingEdge(dut.clk)
        dut.reader__flush.value = 0
        waited = 0
        await RisingEdge(dut.clk)
        while int(dut.reader__busy.value):
            await RisingEdge(dut.clk)
            waited += 1
            assert waited < 2000, f"seed {bench.SEED}: trial {trial}, busy for ever after a flush"
        address = 64 * rng.randrange(1000)
        await bench.put(dut, "reader__requests", [bench.pack(ReadRequest, {"address": address, "beats": 2})], rng)
        got = await bench.get(dut, "reader__o", 2, rng)
        data = [int.from_bytes(ram.read(at, 64), "little") for at in (address, address + 64)]
        assert got == [data[0], data[1] | 1 << 512], f"seed {bench.SEED}: trial {trial}, wrong data after a flush"


@cocotb.test()
async def weights_joined(dut):
    """Every raw beat joins the same beat of all ports, which stall independently."""
    rng = bench.generator("weights")
    await bench.start(dut)
    rams = [read_ram(dut, f"weights__ports__{p}_", rng, 0.3) for p in range(CONFIG.ports)]
    for _ in range(5):
        beats = rng.randint(1, 300)
        offset = rng.randrange(0, CONFIG.channel_bytes - beats * PORT_BYTES, PAGE)
        await bench.put(dut, "weights__start", [bench.pack(WeightRequest, {"offset": offset, "beats": beats})], rng)
        got = await bench.get(dut, "weights__o", beats, rng, rng.choice([0.0, 0.5]))
        for beat, bits in enumerate(got):
            for p, ram in enumerate(rams):
                at = (p * CONFIG.channel_bytes + offset + beat * PORT_BYTES) % (1 << 20)
                want = int.from_bytes(ram.read(at, PORT_BYTES), "little")
                assert bits >> 512 * p & (1 << 512) - 1 == want, f"seed {bench.SEED}: port {p}, beat {beat} of {beats}"
    await RisingEdge(dut.clk)
    await RisingEdge(dut.clk)
    assert int(dut.weights__exhausted.value), "exhausted after the last beat"


@cocotb.test()
async def writer_random(dut):
    """All beats of all cores arrive, the last one of a core at an address wins, with stalls on AW, W and B."""
    rng = bench.generator("writer")
    await bench.start(dut)
    ram = AxiRamWrite(AxiWriteBus.from_prefix(dut, "writer__bus_"), dut.clk, dut.rst, size=1 << 20)
    layout: StructLayout = WriteRequest
    for stall in (0.0, 0.3, 0.7):
        for channel in (ram.aw_channel, ram.w_channel, ram.b_channel):
            channel.set_pause_generator(bench.stalls(rng, stall))
        expected, senders = {}, []
        for core in range(CONFIG.cores):
            payloads = []
            for _ in range(40):
                # Cores own different beats; the last write of a core to an address must win.
                address = 64 * (CONFIG.cores * rng.randrange(50) + core)
                expected[address] = rng.getrandbits(512)
                payloads.append(bench.pack(layout, {"address": address, "data": expected[address]}))
            senders.append(cocotb.start_soon(bench.put(dut, f"writer__i__{core}", payloads, rng, stall / 2)))
        for sender in senders:
            await sender
        for _ in range(5000):
            await RisingEdge(dut.clk)
            if not int(dut.writer__busy.value):
                break
        else:
            raise AssertionError(f"seed {bench.SEED}: writer still busy 5000 cycles after the last beat")
        for address, data in expected.items():
            got = int.from_bytes(ram.read(address, 64), "little")
            assert got == data, f"seed {bench.SEED}: address {address:#x}"
    assert not int(dut.writer__error.value)
