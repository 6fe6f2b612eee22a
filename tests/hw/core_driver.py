"""A schedule in plain Python that drives one core through a layer, in the order of hw/layout.py."""

import numpy as np

from hw.config import AcceleratorConfig
from hw.core import Core
from hw.layout import round_up
from hw.ops import Phase
from model.integer import MlpWeights, MxMatrix
from model.mx import BLOCK

ROWS8 = AcceleratorConfig(name="rows8", cores=8, ports=4, max_hidden_blocks=4, max_intermediate_blocks=4,
                          clock_hz=100_000_000, channel_bytes=1 << 20, fifo_beats=128)
ROWS64 = AcceleratorConfig(name="rows64", cores=16, ports=32, max_hidden_blocks=4, max_intermediate_blocks=4,
                           clock_hz=100_000_000, channel_bytes=1 << 20, fifo_beats=128)


def pack_int(*arrays: np.ndarray) -> int:
    """Bytes of the arrays, one after the other, as a little-endian integer."""
    return int.from_bytes(b"".join(a.tobytes() for a in arrays), "little")



class CoreDriver:
    """Testbench side of ``core``: ``load`` and ``run`` a layer; ``collect`` is a second testbench for the output."""

    def __init__(self, core: Core, rng: np.random.Generator, *, output_stall: float = 0.0, gap: float = 0.0):
        self.core, self.config, self.rng = core, core.config, rng
        self.output_stall, self.gap = output_stall, gap
        self.memory: dict[int, np.ndarray] = {}

    async def collect(self, ctx):
        """Accept output beats for ever, into ``memory`` (address: 32 BF16 words)."""
        o = self.core.o
        while True:
            ctx.set(o.ready, self.rng.random() >= self.output_stall)
            _, _, valid, ready, payload = await ctx.tick().sample(o.valid, o.ready, o.payload)
            if valid and ready:
                data = np.frombuffer(payload.data.to_bytes(2 * BLOCK, "little"), dtype=np.uint16)
                assert payload.address not in self.memory, f"address {payload.address:#x} written twice"
                self.memory[payload.address] = data

    async def start(self, ctx, x: MxMatrix, weights: MlpWeights, addresses: list[int], stray_local: int | None = None):
        """A job with one slot a local row: ``x`` is ``[rows, hidden]``."""
        core = self.core
        shape = {"hidden_blocks": weights.hidden // BLOCK, "intermediate_blocks": weights.intermediate // BLOCK,
                 "gate_scale": weights.gate.largest_scale, "up_scale": weights.up.largest_scale,
                 "down_scale": weights.down.largest_scale}
        ctx.set(core.shape, shape)
        ctx.set(core.rows, len(addresses))
        ctx.set(core.start, 1)
        await ctx.tick()
        ctx.set(core.start, 0)
        for local, address in enumerate(addresses):
            ctx.set(core.bind_valid, 1)
            ctx.set(core.bind, {"local": local, "address": address})
            await ctx.tick()
        ctx.set(core.bind_valid, 0)
        ctx.set(core.load_valid, 1)
        for local in range(len(addresses)):
            for block in range(x.scales.shape[1]):
                codes = x.codes[local, block * BLOCK:(block + 1) * BLOCK]
                ctx.set(core.load, {"local": local, "block": block, "scale": int(x.scales[local, block]),
                                    "codes": [int(c) for c in codes]})
                await ctx.tick()
        ctx.set(core.load_valid, 0)

    async def run(self, ctx, weights: MlpWeights, rows: int):
        """Both phases; returns when no gate/up drain is in flight and all DOWN drains were issued."""
        gate_up = MxMatrix(
            np.stack([weights.gate.codes, weights.up.codes], axis=1).reshape(-1, weights.hidden),
            np.stack([weights.gate.scales, weights.up.scales], axis=1).reshape(-1, weights.hidden // BLOCK))
        await self.phase(ctx, Phase.GATE_UP, gate_up, rows)
        while ctx.get(self.core.busy):
            await ctx.tick()
        await self.phase(ctx, Phase.DOWN, weights.down, rows)

    async def phase(self, ctx, phase: Phase, matrix: MxMatrix, rows: int):
        config, core = self.config, self.core
        outputs, blocks = matrix.scales.shape
        padding = round_up(outputs, config.rows) - outputs
        codes = np.pad(matrix.codes, ((0, padding), (0, 0))).reshape(-1, config.rows, blocks, BLOCK)
        scales = np.pad(matrix.scales, ((0, padding), (0, 0))).reshape(-1, config.rows, blocks)
        for bank, first in enumerate(range(0, len(codes), config.groups)):
            groups = range(first, min(first + config.groups, len(codes)))
            ops = [(block, group, local) for block in range(blocks) for group in groups for local in range(rows)]
            for block, group, local in ops:
                await self._random_gap(ctx)
                ctx.set(core.mac, {"phase": phase, "bank": bank % 2, "group": group - first, "local": local,
                                   "block": block, "first": block == 0})
                ctx.set(core.beat.as_value(), pack_int(codes[group, :, block], scales[group, :, block]))
                ctx.set(core.mac_valid, 1)
                await ctx.tick()
                ctx.set(core.mac_valid, 0)
            for _ in range(Core.MAC_LATENCY - 1):
                await ctx.tick()
            await self._drain(ctx, phase, bank % 2, first, groups, rows)

    async def _drain(self, ctx, phase, bank, first, groups, rows):
        config, core = self.config, self.core
        per_group = config.pairs if phase == Phase.GATE_UP else config.rows
        for local in range(rows):
            for group in groups:
                await self._random_gap(ctx)
                while phase == Phase.DOWN and not ctx.get(core.drain_ready):
                    await ctx.tick()
                start = group * per_group
                ctx.set(core.drain, {"phase": phase, "bank": bank, "group": group - first, "local": local,
                                     "block": start // BLOCK, "first": start % BLOCK == 0,
                                     "last": (start + per_group) % BLOCK == 0})
                ctx.set(core.drain_valid, 1)
                await ctx.tick()
                ctx.set(core.drain_valid, 0)

    async def _random_gap(self, ctx):
        while self.rng.random() < self.gap:
            await ctx.tick()
