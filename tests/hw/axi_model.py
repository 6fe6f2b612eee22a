"""AXI4 memory for Amaranth's simulator: random latency, stalls, error responses, and a check of the master's manners.

One ``AxiMemory`` may serve any number of ports; each ``read_slave`` / ``write_slave`` call makes one background
testbench (``sim.add_testbench(memory.read_slave(bus), background=True)``). Responses come in order.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from hw.axi import DATA_BITS
from hw.config import BURST_BEATS, PORT_BYTES

SLVERR = 2


@dataclass(frozen=True, kw_only=True)
class Timing:
    """``latency``: least and most cycles from an accepted address to its first beat or answer. ``stall``: share of
    cycles in which a channel holds back (0 = never). ``silent``: addresses are accepted, nothing is ever answered."""

    latency: tuple[int, int] = (3, 12)
    stall: float = 0.3
    silent: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.stall < 1:
            raise ValueError(f"stall must be in [0, 1), not {self.stall!r}")


FAST = Timing(latency=(1, 1), stall=0.0)


def cycle_limit(cycles: int) -> Callable:
    """Background testbench that fails a simulation which hangs."""

    async def testbench(ctx):
        for _ in range(cycles):  # not repeat(): it cannot be dropped at the end of the simulation
            await ctx.tick()
        raise AssertionError(f"simulation still runs after {cycles} cycles")

    return testbench


@dataclass
class AxiMemory:
    """Sparse memory of 64-byte beats (``beats``: address -> value), zero where never written.

    ``errors`` holds beat addresses that answer SLVERR. ``reads`` and ``writes`` log (address, beats) of every burst.
    """

    seed: int
    timing: Timing = Timing()
    beats: dict[int, int] = field(default_factory=dict)
    errors: set[int] = field(default_factory=set)
    reads: list[tuple[int, int]] = field(default_factory=list)
    writes: list[tuple[int, int]] = field(default_factory=list)
    slaves: int = 0

    def store(self, address: int, data: bytes) -> None:
        """Put ``data`` (padded with zeros to whole beats) at a 64-byte aligned address."""
        for at in range(0, len(data), PORT_BYTES):
            self.beats[address + at] = int.from_bytes(data[at:at + PORT_BYTES], "little")

    def load(self, address: int, size: int) -> bytes:
        """``size`` bytes from a 64-byte aligned address."""
        beats = range(address, address + size, PORT_BYTES)
        return b"".join(self.beats.get(a, 0).to_bytes(PORT_BYTES, "little") for a in beats)[:size]

    def _generator(self) -> random.Random:
        self.slaves += 1
        return random.Random(f"{self.seed}/{self.slaves}")

    def _require(self, condition: bool, what: str) -> None:
        assert condition, f"seed {self.seed}: AXI master broke a rule: {what}"

    def _check_address(self, channel: str, address: int, length: int, size: int, burst: int) -> None:
        end = address + length * PORT_BYTES
        self._require(address % PORT_BYTES == 0 and 1 << size == PORT_BYTES and burst == 1,
                      f"{channel} address {address:#x}, size {size}, burst type {burst}")
        self._require(length <= BURST_BEATS and address // 4096 == (end - 1) // 4096,
                      f"{channel} burst of {length} beats at {address:#x} crosses 4 KiB")

    def read_slave(self, bus) -> Callable:
        """Testbench that answers the AR/R channels of ``bus``."""
        rng = self._generator()

        async def testbench(ctx):
            now, held, sending = 0, None, False
            queue = deque()  # (earliest cycle, address, last beat of the burst)
            ctx.set(bus.arready, 0)
            ctx.set(bus.rvalid, 0)
            channel = (bus.arvalid, bus.araddr, bus.arlen, bus.arsize, bus.arburst)
            while True:
                sampled = await ctx.tick().sample(*channel, bus.arready, bus.rready)
                valid, address, arlen, size, burst, ready, rready = sampled[-7:]
                now += 1
                offer = (address, arlen, size, burst)
                self._require(held is None or (valid and offer == held), f"AR changed from {held} before its handshake")
                held = offer if valid and not ready else None
                if valid and ready:
                    self._check_address("read", address, arlen + 1, size, burst)
                    self.reads.append((address, arlen + 1))
                    due = now + rng.randint(*self.timing.latency) - 1
                    for i in range(0 if self.timing.silent else arlen + 1):
                        queue.append((due, address + i * PORT_BYTES, i == arlen))
                if sending and rready:
                    queue.popleft()
                    sending = False
                if not sending and queue and queue[0][0] <= now and rng.random() >= self.timing.stall:
                    _, address, last = queue[0]
                    sending = True
                    ctx.set(bus.rdata, self.beats.get(address, 0))
                    ctx.set(bus.rresp, SLVERR if address in self.errors else 0)
                    ctx.set(bus.rlast, last)
                ctx.set(bus.rvalid, sending)
                ctx.set(bus.arready, rng.random() >= self.timing.stall)

        return testbench

    def write_slave(self, bus) -> Callable:
        """Testbench that takes the AW/W channels of ``bus`` in any order and answers on B."""
        rng = self._generator()

        async def testbench(ctx):
            now, answering = 0, False
            held = {"aw": None, "w": None}
            addresses, data, answers = deque(), deque(), deque()
            written = 0  # beats of the burst at the head of ``addresses``
            for ready in (bus.awready, bus.wready, bus.bvalid):
                ctx.set(ready, 0)
            channels = (bus.awvalid, bus.awready, bus.awaddr, bus.awlen, bus.awsize, bus.awburst,
                        bus.wvalid, bus.wready, bus.wdata, bus.wstrb, bus.wlast, bus.bready)
            while True:
                sampled = await ctx.tick().sample(*channels)
                awvalid, awready, *aw, wvalid, wready, wdata, wstrb, wlast, bready = sampled[-len(channels):]
                now += 1
                for name, valid, ready, offer in (("aw", awvalid, awready, tuple(aw)),
                                                  ("w", wvalid, wready, (wdata, wstrb, wlast))):
                    self._require(held[name] is None or (valid and offer == held[name]),
                                  f"{name} changed before its handshake")
                    held[name] = offer if valid and not ready else None
                if awvalid and awready:
                    address, awlen, size, burst = aw
                    self._check_address("write", address, awlen + 1, size, burst)
                    self.writes.append((address, awlen + 1))
                    addresses.append((address, awlen + 1))
                if wvalid and wready:
                    data.append((wdata, wstrb, wlast))
                while addresses and data:
                    (address, length), (value, strobes, last) = addresses[0], data.popleft()
                    at = address + written * PORT_BYTES
                    written += 1
                    self._require(bool(last) == (written == length), f"WLAST {last} at beat {written} of {length}")
                    mask = sum(0xFF << 8 * b for b in range(DATA_BITS // 8) if strobes >> b & 1)
                    self.beats[at] = self.beats.get(at, 0) & ~mask | value & mask
                    if last:
                        due = now + rng.randint(*self.timing.latency) - 1
                        if not self.timing.silent:
                            answers.append((due, SLVERR if at in self.errors else 0))
                        addresses.popleft()
                        written = 0
                if answering and bready:
                    answers.popleft()
                    answering = False
                if not answering and answers and answers[0][0] <= now and rng.random() >= self.timing.stall:
                    answering = True
                    ctx.set(bus.bresp, answers[0][1])
                ctx.set(bus.bvalid, answering)
                ctx.set(bus.awready, rng.random() >= self.timing.stall)
                ctx.set(bus.wready, rng.random() >= self.timing.stall)

        return testbench
