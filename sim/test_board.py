"""Whole jobs on the simulated board (tiny preset), bit-exact with the integer model, under all kinds of memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hw.config import PORT_BYTES, preset
from hw.isa import Error, Instruction, Opcode
from hw.layout import layer_beats, output_bytes, phase_beats
from hw.registers import CONTROL_RESET, STATUS_DONE, STATUS_ERROR, STATUS_NAN, address
from model.integer import BF16_NAN
from model.mx import BLOCK, SCALE_NAN
from sim import jobs, walk
from sim.board import SimulatedBoard
from sim.memory import MemoryConfig

CONFIG = preset("tiny")

MEMORIES = {
    "fast": MemoryConfig(latency=1),
    "plain": MemoryConfig(),
    "far": MemoryConfig(latency=700, outstanding=2),
    "narrow": MemoryConfig(bytes_per_cycle=9.5),
    "stalling": MemoryConfig(stall_probability=0.3),
    "worst": MemoryConfig(latency=33, bytes_per_cycle=21, stall_probability=0.7, outstanding=1),
}


@pytest.fixture
def board():
    with SimulatedBoard(CONFIG) as board:
        yield board


def random_job(rng: np.random.Generator, *, slots: int | None = None, tas: bool = False, spread: int = 6,
               hidden: int | None = None, intermediate: int | None = None, **fields) -> jobs.Job:
    """A job of random size that fits the tiny preset; slots, mask and scores random where not given."""
    hidden = hidden or BLOCK * int(rng.integers(1, CONFIG.max_hidden_blocks + 1))
    intermediate = intermediate or BLOCK * int(rng.integers(1, CONFIG.max_intermediate_blocks + 1))
    slots = slots or int(rng.integers(1, 33))
    chosen: dict[str, Any] = {"active": int(rng.integers(0, 1 << slots)), "mask": int(rng.integers(0, 1 << 32)),
              "old": rng.integers(0, 1 << 16, (slots, hidden)).astype(np.uint16),
              "offset": 4096 * int(rng.integers(0, 8))}
    if tas:
        heads = int(rng.integers(1, CONFIG.max_heads + 1))
        chosen |= {"scores": rng.integers(-(2**31), 2**31, (slots, heads)).astype(np.int32), "threshold": 0}
    return jobs.Job(config=CONFIG, weights=walk.random_layer(rng, hidden, intermediate, spread=spread),
                    x=walk.random_matrix(rng, slots, hidden, 127, spread), **(chosen | fields))


@pytest.mark.parametrize("memory", MEMORIES)
def test_random_jobs(board, seed, memory):
    rng = np.random.default_rng([seed, *memory.encode()])
    for number in range(4):
        board.configure(MemoryConfig(**(vars(MEMORIES[memory]) | {"seed": int(rng.integers(1 << 30))})))
        job = random_job(rng, tas=bool(number % 2), spread=int(rng.choice([0, 6, 40])))
        jobs.check(board, job, f"seed {seed}, memory {memory}, job {number}")


@pytest.mark.slow
def test_many_random_jobs(board, seed):
    rng = np.random.default_rng([seed, 1])
    for number in range(300):
        board.configure(MemoryConfig(
            latency=int(rng.integers(1, 200)), bytes_per_cycle=float(rng.uniform(8, 80)), seed=number,
            stall_probability=float(rng.choice([0, 0.2, 0.8])), outstanding=int(rng.integers(1, 20))))
        jobs.check(board, random_job(rng, tas=bool(number % 2), spread=int(rng.choice([0, 6, 40]))),
                   f"seed {seed}, job {number}")


@pytest.mark.parametrize("rows", range(1, 6))
def test_counters_and_cycles(board, seed, rows):
    """Work counters are exact; the cycles stay within what the sizes and the memory explain."""
    board.configure(MemoryConfig(latency=20))
    rng = np.random.default_rng([seed, rows])
    hidden, intermediate = 128, 192
    active = sum(1 << int(slot) for slot in rng.permutation(8)[:rows + 1])
    computing = active & (active - 1)  # all but the lowest
    job = random_job(rng, slots=8, hidden=hidden, intermediate=intermediate, active=active, mask=computing)
    before = [board.beats(1 + port)[0] for port in range(CONFIG.ports)]
    jobs.check(board, job, f"seed {seed}")
    got = jobs.counters(board)
    beats, busiest = layer_beats(CONFIG, hidden, intermediate), -(-rows // CONFIG.cores)
    data = 3 * hidden * intermediate // (BLOCK * CONFIG.rows)
    exact = {"WEIGHT_BEATS": beats, "WEIGHT_BYTES": beats * CONFIG.ports * PORT_BYTES, "MAC_CYCLES": data * busiest,
             "OUTPUT_BYTES": rows * output_bytes(hidden), "ROWS_COMPUTED": rows, "ROWS_REPLAYED": 1,
             "BUSIEST_ROWS": busiest, "SCORE_CYCLES": 0}
    assert {name: got[name] for name in exact} == exact, f"seed {seed}"
    assert [board.beats(1 + port)[0] for port in range(CONFIG.ports)] == [before[0] + beats] * CONFIG.ports
    assert got["DRS_CYCLES"] <= 8
    # With one row a beat is used up in the cycle it is taken, and a scale beat costs a cycle of its own.
    busy = data * busiest + (beats - data if busiest == 1 else 1)
    overhead = got["CYCLES"] - busy - got["FETCH_CYCLES"] - got["STALL_DRAIN_CYCLES"] - got["STALL_WEIGHT_CYCLES"]
    explained = got["INPUT_CYCLES"] + busiest * CONFIG.groups  # the loads, the drain of the last pass
    assert 0 <= overhead <= explained + 100, f"seed {seed}: {got}"
    drains = busiest * (2 * intermediate + hidden) // CONFIG.rows
    assert got["STALL_DRAIN_CYCLES"] <= drains + 60, f"seed {seed}: {got}"


def test_bandwidth_sets_the_pace(board, seed):
    """One row on a narrow memory: as many cycles as the weights need, to 3 %."""
    rng = np.random.default_rng([seed, 2])
    job = random_job(rng, slots=1, hidden=128, intermediate=256, active=1, mask=1)
    for bytes_per_cycle in (16.0, 24.0, 40.0):
        board.configure(MemoryConfig(bytes_per_cycle=bytes_per_cycle, latency=10))
        jobs.check(board, job, f"seed {seed}, {bytes_per_cycle} B/cycle")
        got = jobs.counters(board)
        least = layer_beats(CONFIG, 128, 256) * PORT_BYTES / bytes_per_cycle
        waited = got["MAC_CYCLES"] + got["STALL_WEIGHT_CYCLES"] + got["STALL_DRAIN_CYCLES"]
        assert least * 0.97 - CONFIG.fifo_beats <= waited <= least * 1.03 + 100, f"{bytes_per_cycle}: {got}"


def test_scores_at_the_threshold(board, seed):
    """Replay if and only if the sum reaches the threshold: at it, one below, one above, and at the ends of int32."""
    board.configure(MemoryConfig())
    rng = np.random.default_rng([seed, 3])
    heads, threshold = CONFIG.max_heads, -12345
    scores = rng.integers(-(2**20), 2**20, (32, heads))
    for slot in range(24):
        scores[slot, 0] += threshold + slot % 3 - 1 - scores[slot].sum()
    scores[24:28], scores[28:] = 2**31 - 1, -(2**31)
    job = random_job(rng, slots=32, scores=scores.astype(np.int32), threshold=threshold, active=(1 << 32) - 1,
                     hidden=64, intermediate=64)
    jobs.check(board, job, f"seed {seed}")
    assert job.index == sum(1 << slot for slot in range(32) if (slot < 24 and slot % 3 == 0) or slot >= 28)
    assert jobs.counters(board)["DRS_CYCLES"] <= 8


@pytest.mark.parametrize("tas", [False, True])
def test_all_rows_replay(board, seed, tas):
    """No weight is read at all, nothing is written, and the outputs stay."""
    board.configure(MemoryConfig())
    rng = np.random.default_rng([seed, 4])
    job = random_job(rng, slots=12, tas=tas, active=0xFFF, mask=0, **({"threshold": -(1 << 40)} if tas else {}))
    beats = [board.beats(port) for port in range(CONFIG.ports + 1)]
    jobs.check(board, job, f"seed {seed}")
    got = jobs.counters(board)
    for name in ("WEIGHT_BYTES", "WEIGHT_BEATS", "OUTPUT_BYTES", "ROWS_COMPUTED", "MAC_CYCLES", "INPUT_CYCLES"):
        assert got[name] == 0, name
    assert got["ROWS_REPLAYED"] == 12 and got["CYCLES"] < 400, got
    assert [board.beats(port) for port in range(1, CONFIG.ports + 1)] == beats[1:], "weight ports moved"
    assert board.beats(0)[1] == beats[0][1], "something was written"


def test_ties(board, seed):
    """Rounding of exact halves. Only one input is not zero, every gate is above 16 and exact, and a down row has one
    weight: hidden values and outputs are products of two 7-bit codes, of which about one in a hundred is a tie."""
    board.configure(MemoryConfig())
    rng = np.random.default_rng([seed, 9])
    hidden, intermediate = 128, 256
    job = random_job(rng, slots=4, hidden=hidden, intermediate=intermediate, spread=0, active=15, mask=15)
    for matrix in (job.x, job.weights.gate, job.weights.up, job.weights.down):
        matrix.codes[:] = 0
        matrix.scales[:] = 127
    job.x.codes[:, 0] = 64
    job.weights.gate.codes[:, 0] = rng.integers(64, 128, intermediate)
    job.weights.gate.scales[:, 0] = 132
    job.weights.up.codes[:, 0] = rng.integers(64, 128, intermediate) * rng.choice([-1, 1], intermediate)
    job.weights.down.codes[np.arange(hidden), rng.permutation(intermediate)[:hidden]] = rng.integers(64, 128, hidden)
    jobs.check(board, job, f"seed {seed}")


def test_nan_blocks(board, seed):
    board.configure(MemoryConfig())
    rng = np.random.default_rng([seed, 5])
    job = random_job(rng, slots=6, active=0x3F, mask=0x3F)
    job.x.scales[4, -1] = SCALE_NAN
    jobs.check(board, job, f"seed {seed}")
    assert (jobs.results(board, job)[4] == BF16_NAN).all()
    assert board.read_csr(address("STATUS")) == STATUS_DONE | STATUS_NAN
    job.x.scales[4, -1] = 127
    job.weights.down.scales[-1, -1] = SCALE_NAN
    jobs.check(board, job, f"seed {seed}, weights")
    assert (jobs.results(board, job) == BF16_NAN).all()


def test_a_flipped_weight_bit_changes_the_result(board, seed):
    """The outputs come from the weights in board memory and from nowhere else."""
    board.configure(MemoryConfig())
    rng = np.random.default_rng([seed, 6])
    job = random_job(rng, slots=2, spread=0, active=3, mask=3)
    jobs.check(board, job, f"seed {seed}")
    right = jobs.results(board, job)
    # Bit 6 of a code in the last data beat: its first byte belongs to one row of the down matrix.
    beats = layer_beats(CONFIG, job.weights.hidden, job.weights.intermediate)
    board.memory[job.offset + PORT_BYTES * (beats - 1)] ^= 0x40
    assert jobs.run(board) == STATUS_DONE
    wrong = jobs.results(board, job)
    changed = np.flatnonzero((wrong != right).any(axis=0))
    assert len(changed) == 1, f"seed {seed}: outputs {changed} changed; one weight row feeds one output"
    board.memory[job.offset + PORT_BYTES * (beats - 1)] ^= 0x40
    jobs.run(board)
    jobs.compare(jobs.results(board, job), right, f"seed {seed}, flipped back")


def broken_programs(job: jobs.Job) -> dict[str, tuple[Sequence[Instruction | bytes], Error, int]]:
    """Name -> (program, expected error, index of the instruction to blame)."""
    good = job.program()
    at = {op: next(i for i, instruction in enumerate(good) if instruction.opcode == op) for op in Opcode
          if op in {instruction.opcode for instruction in good}}

    def changed(opcode: Opcode, **fields) -> list[Instruction]:
        return [Instruction(**(vars(i) | fields)) if n == at[opcode] else i for n, i in enumerate(good)]

    def raw(index: int, word: int) -> list[Instruction | bytes]:
        return [*good[:index], word.to_bytes(16, "little"), *good[index + 1:]]

    layer, weights, load = at[Opcode.LAYER], at[Opcode.WEIGHTS], at[Opcode.LOAD]
    too_many = CONFIG.max_intermediate_blocks + 1
    encoded = int.from_bytes(good[load].encode(), "little")
    return {
        "unknown opcode": (raw(load, 0x55), Error.OPCODE, load),
        "memory never written": (raw(layer, 0), Error.OPCODE, layer),
        "unused bit set": (raw(load, encoded | 1 << 40), Error.OPCODE, load),
        "slot 32": (changed(Opcode.LOAD, slot=32), Error.SLOT, load),
        "slot 255": (changed(Opcode.STORE, slot=255), Error.SLOT, at[Opcode.STORE]),
        "no blocks": (changed(Opcode.LAYER, hidden_blocks=0), Error.SHAPE, layer),
        "too many blocks": (changed(Opcode.LAYER, intermediate_blocks=too_many), Error.SHAPE, layer),
        "too many heads": (changed(Opcode.SCORES, count=CONFIG.max_heads + 1), Error.SHAPE, at[Opcode.SCORES]),
        "no heads": (changed(Opcode.SCORES, count=0), Error.SHAPE, at[Opcode.SCORES]),
        "weights off a page": (changed(Opcode.WEIGHTS, offset=job.offset + 64), Error.ADDRESS, weights),
        "weights beyond": (changed(Opcode.WEIGHTS, offset=CONFIG.channel_bytes), Error.ADDRESS, weights),
        "input off a beat": (changed(Opcode.LOAD, offset=32), Error.ADDRESS, load),
        "input beyond": (changed(Opcode.LOAD, offset=CONFIG.ports * CONFIG.channel_bytes), Error.ADDRESS, load),
        "input far beyond": (changed(Opcode.LOAD, offset=1 << 63), Error.ADDRESS, load),
        "weights too few": (changed(Opcode.WEIGHTS, count=good[weights].count - 1), Error.STREAM, weights),
        "weights too many": (changed(Opcode.WEIGHTS, count=good[weights].count + 1), Error.STREAM, weights),
        "load before decide": ([*good[:2], good[load], *good[2:]], Error.ORDER, 2),
        "no load": (good[:load] + good[load + 1:], Error.ORDER, at[Opcode.RUN] - 1),
        "no layer": (good[1:], Error.ORDER, 0),
        "no scores": (good[:2] + good[at[Opcode.DECIDE]:], Error.ORDER, 2),
        "no end": (good[:-1], Error.PROGRAM, len(good) - 2),
    }


def encode(program: Sequence[Instruction | bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(i if isinstance(i, bytes) else i.encode() for i in program), dtype=np.uint8)


@pytest.fixture(scope="module")
def tas_job() -> jobs.Job:
    """Slot 0 computes and slot 1 replays by their scores."""
    rng = np.random.default_rng(0)
    scores = np.array([[-5, -5], [5, 5]], dtype=np.int32)
    return random_job(rng, slots=2, active=3, scores=scores, hidden=64, intermediate=96, offset=4096)


CASES = sorted(broken_programs(random_job(np.random.default_rng(0), slots=2, active=3,
                                          scores=np.array([[-5, -5], [5, 5]], dtype=np.int32))))


@pytest.mark.parametrize("case", CASES)
def test_a_broken_program_stops_with_its_error(board, seed, tas_job, case):
    """Error code and instruction index, a halt, no harm to memory; after a reset the good job works."""
    program, error, index = broken_programs(tas_job)[case]
    board.configure(MemoryConfig(latency=15, stall_probability=0.1, seed=seed))
    jobs.load(board, tas_job)
    board.write_memory(tas_job.start, encode(program))
    board.write_csr(address("PROGRAM_COUNT"), len(program))
    assert jobs.run(board, 20_000) & STATUS_ERROR, f"{case}: no error"
    got = Error(jobs.read(board, "ERROR")), jobs.read(board, "ERROR_INDEX")
    assert got == (error, index), f"{case}: {got}"
    if error != Error.PROGRAM:  # a missing END shows behind a RUN that was legal
        jobs.compare(jobs.results(board, tas_job), tas_job.old, f"{case}: outputs after the error")
    recover(board, tas_job, case)


def recover(board: SimulatedBoard, job: jobs.Job, context: str) -> None:
    """Reset command; then nothing shows the error any more, and the good job is right."""
    board.write_csr(address("CONTROL"), CONTROL_RESET)
    for _ in range(20):
        if not jobs.read(board, "STATUS"):
            break
    assert (jobs.read(board, "STATUS"), jobs.read(board, "ERROR")) == (0, 0), f"{context}: after the reset"
    jobs.check(board, job, f"{context}: job after the reset")


@pytest.mark.parametrize("count", [0, CONFIG.program_length + 1, 0xFFFFFFFF])
def test_program_length(board, tas_job, count):
    board.configure(MemoryConfig())
    jobs.load(board, tas_job)
    board.write_csr(address("PROGRAM_COUNT"), count)
    assert jobs.run(board, 20_000) & STATUS_ERROR
    assert jobs.read(board, "ERROR") == Error.PROGRAM
    recover(board, tas_job, f"PROGRAM_COUNT {count}")


def regions(job: jobs.Job) -> dict[str, tuple[int, dict[str, bool], Error]]:
    """Memory of each kind of traffic: (address, direction, error when the memory refuses)."""
    last_beat = job.offset + PORT_BYTES * (layer_beats(CONFIG, job.weights.hidden, job.weights.intermediate) - 1)
    down = job.offset + PORT_BYTES * phase_beats(CONFIG, 2 * job.weights.intermediate, job.weights.hidden // BLOCK)
    return {
        "program": (job.start, {"reads": True}, Error.READ),
        "scores": (job.scores_base, {"reads": True}, Error.READ),
        "inputs": (job.input_base, {"reads": True}, Error.READ),
        "first weights": (job.offset, {"reads": True}, Error.READ),
        "down weights": (down, {"reads": True}, Error.READ),
        "last weights": (last_beat, {"reads": True}, Error.READ),
        "outputs": (job.output_base, {"writes": True}, Error.WRITE),
    }


REGIONS = ("program", "scores", "inputs", "first weights", "down weights", "last weights", "outputs")


@pytest.mark.parametrize("region", REGIONS)
def test_a_refusing_memory(board, seed, tas_job, region):
    """SLVERR anywhere stops the job with READ or WRITE; after a reset the next job is right."""
    at, direction, error = regions(tas_job)[region]
    board.configure(MemoryConfig(latency=30, stall_probability=0.1, seed=seed))
    jobs.load(board, tas_job)
    board.add_fault(at, at + PORT_BYTES, **direction)
    assert jobs.run(board, 20_000) & STATUS_ERROR, f"{region}: no error"
    assert jobs.read(board, "ERROR") == error, region
    assert jobs.read(board, "ERROR_INDEX") < len(tas_job.program())
    board.clear_faults()
    recover(board, tas_job, region)


@pytest.mark.parametrize("region", REGIONS)
def test_a_silent_memory(board, seed, tas_job, region):
    """A memory that never answers: the watchdog ends the job after its time, and a reset forgets the traffic."""
    at, direction, _ = regions(tas_job)[region]
    board.configure(MemoryConfig(latency=30))
    jobs.load(board, tas_job)
    board.write_csr(address("WATCHDOG"), 1500)
    board.add_fault(at, at + PORT_BYTES, silent=True, **direction)
    before = board.cycles
    assert jobs.run(board, 20_000) & STATUS_ERROR, f"{region}: no error"
    assert board.cycles - before > 1500
    assert jobs.read(board, "ERROR") == Error.WATCHDOG, region
    board.clear_faults()
    recover(board, tas_job, region)


def test_two_boards_do_not_share_anything(board, seed):
    board.configure(MemoryConfig())
    rng = np.random.default_rng([seed, 7])
    first, second = random_job(rng, slots=2, active=3, mask=3), random_job(rng, slots=3, active=7, mask=7)
    with SimulatedBoard(CONFIG) as other:
        jobs.load(board, first)
        jobs.check(other, second, f"seed {seed}, second board")
        assert jobs.run(board) == STATUS_DONE
        jobs.compare(jobs.results(board, first), first.expected(), f"seed {seed}, first board")
