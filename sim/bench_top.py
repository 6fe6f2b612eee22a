"""cocotb test of the whole accelerator between cocotbext-axi models: jobs from a file, bit-exact, with random stalls.

The environment variable FASTCAR_JOBS names a pickle of ``list[sim.jobs.Job]`` that the test runner wrote.
"""

import os
import pickle
from pathlib import Path

import cocotb
import numpy as np
from cocotb.triggers import First, RisingEdge, Timer
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster, AxiRam, AxiRamRead, AxiReadBus

from hw.config import PORT_BYTES
from hw.layout import layer_beats, output_bytes
from hw.registers import BY_NAME, CONTROL_START, COUNTERS, STATUS_BUSY, STATUS_DONE, STATUS_ERROR, address
from model.mx import BLOCK
from sim import bench
from sim.jobs import Job, compare

JOBS_VARIABLE = "FASTCAR_JOBS"
LIMIT_CYCLES = 200_000


class Machine:
    """The accelerator with a register master and one memory behind all ports."""

    def __init__(self, dut, config):
        self.dut, self.config = dut, config
        self.csr = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "csr_"), dut.clk, dut.rst)
        size = config.ports * config.channel_bytes
        self.data = AxiRam(AxiBus.from_prefix(dut, "data_"), dut.clk, dut.rst, size=size)
        self.weights = [AxiRamRead(AxiReadBus.from_prefix(dut, f"weights_{p}_"), dut.clk, dut.rst, mem=self.data.mem)
                        for p in range(config.ports)]

    def stall(self, rng, probability: float) -> None:
        """Random pauses on every channel of every port."""
        write, read = self.data.write_if, self.data.read_if
        channels = [write.aw_channel, write.w_channel, write.b_channel, read.ar_channel, read.r_channel]
        for ram in self.weights:
            channels += [ram.ar_channel, ram.r_channel]
        write, read = self.csr.write_if, self.csr.read_if
        channels += [write.aw_channel, write.w_channel, write.b_channel, read.ar_channel, read.r_channel]
        for channel in channels:
            channel.set_pause_generator(bench.stalls(rng, probability) if probability else None)
            channel.pause = False

    async def read(self, name: str) -> int:
        return int.from_bytes((await self.csr.read(address(name), 4 * BY_NAME[name].words)).data, "little")

    async def run(self, job: Job) -> int:
        """Write memory and registers, start, wait for the interrupt; cycles from the start to it."""
        for at, data in job.image():
            self.data.write(at, data.tobytes())
        for register, value in job.registers():
            await self.csr.write_dword(register, value)
        started: list[int] = []

        async def watch():
            while not started:
                await RisingEdge(self.dut.clk)
                if int(self.dut.csr__awvalid.value) and int(self.dut.csr__awready.value):
                    started.append(bench.now())

        watcher = cocotb.start_soon(watch())
        await self.csr.write_dword(address("CONTROL"), CONTROL_START)
        await watcher
        if not int(self.dut.interrupt.value):
            await First(RisingEdge(self.dut.interrupt), Timer(LIMIT_CYCLES * bench.CLOCK_NS, "ns"))
        return bench.now() - started[0]


async def check(machine: Machine, job: Job, context: str) -> dict[str, int]:
    """Run one job and compare outputs, index bits, mapping and the exact counters."""
    cycles = await machine.run(job)
    status = await machine.read("STATUS")
    assert not status & STATUS_BUSY, f"{context}: still busy after {LIMIT_CYCLES} cycles"
    error = await machine.read("ERROR"), await machine.read("ERROR_INDEX")
    assert not status & STATUS_ERROR, f"{context}: error {error[0]} at instruction {error[1]}"
    assert status & STATUS_DONE, f"{context}: STATUS {status:#x}"
    assert await machine.read("INDEX") == job.index, f"{context}: index bits, expected {job.index:#010x}"
    size = job.slots * output_bytes(job.weights.hidden)
    memory = np.frombuffer(machine.data.read(job.output_base, size), dtype=np.uint8)
    compare(job.outputs(memory), job.expected(), context)

    cores, rows = machine.config.cores, bin(job.index).count("1")
    computing = [slot for slot in range(job.slots) if job.index >> slot & 1]
    for rank, slot in enumerate(computing):
        core = int.from_bytes((await machine.csr.read(address("MAPPING", slot), 4)).data, "little")
        assert core == rank % cores, f"{context}: slot {slot} is on core {core}"
    counters = {name: await machine.read(name) for name in COUNTERS}
    hidden, intermediate = job.weights.hidden, job.weights.intermediate
    beats = layer_beats(machine.config, hidden, intermediate) if rows else 0
    data = 3 * hidden * intermediate // (BLOCK * machine.config.rows) if rows else 0
    busiest = -(-rows // cores)
    exact = {"WEIGHT_BEATS": beats, "WEIGHT_BYTES": beats * machine.config.ports * PORT_BYTES,
             "MAC_CYCLES": data * busiest, "OUTPUT_BYTES": rows * output_bytes(hidden), "ROWS_COMPUTED": rows,
             "ROWS_REPLAYED": bin(job.active).count("1") - rows, "BUSIEST_ROWS": busiest}
    got = {name: counters[name] for name in exact}
    assert got == exact, f"{context}: counters {got}, expected {exact}"
    assert counters["DRS_CYCLES"] <= 8, f"{context}: {counters['DRS_CYCLES']} cycles from last score to dispatch"
    assert abs(counters["CYCLES"] - cycles) <= 2, f"{context}: CYCLES {counters['CYCLES']}, seen {cycles}"
    return counters


@cocotb.test()
async def top_jobs(dut):
    """Every job, without stalls and with more and more of them; the model and the board agree in every bit."""
    rng = bench.generator("top")
    job_list: list[Job] = pickle.loads(Path(os.environ[JOBS_VARIABLE]).read_bytes())
    await bench.start(dut)
    machine = Machine(dut, job_list[0].config)
    await bench.reset(dut)
    for number, job in enumerate(job_list):
        stall = (0.0, 0.2, 0.5)[number % 3]
        machine.stall(rng, stall)
        context = f"seed {bench.SEED}, job {number}, stall {stall}"
        counters = await check(machine, job, context)
        if not stall and job.index:
            busiest, config = counters["BUSIEST_ROWS"], job.config
            single = counters["WEIGHT_BEATS"] - counters["MAC_CYCLES"] if busiest == 1 else 0
            explained = (counters["MAC_CYCLES"] + single + counters["FETCH_CYCLES"] + counters["SCORE_CYCLES"]
                         + counters["INPUT_CYCLES"] + counters["STALL_DRAIN_CYCLES"] + counters["STALL_WEIGHT_CYCLES"]
                         + busiest * config.groups)
            assert counters["CYCLES"] <= explained + 100, f"{context}: {counters}"
