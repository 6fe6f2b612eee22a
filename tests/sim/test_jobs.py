import numpy as np
import pytest

from hw.config import preset
from hw.isa import Opcode
from hw.layout import pack_layer, phase_beats, unpack_layer
from hw.ops import Phase
from model.integer import MxMatrix, mlp
from sim import jobs, walk

CONFIG = preset("tiny")


def make(seed: int = 0, **fields) -> jobs.Job:
    rng = np.random.default_rng(seed)
    chosen = {"active": 0b1110, "mask": 0b0110} | fields
    return jobs.Job(config=CONFIG, weights=walk.random_layer(rng, 64, 96), x=walk.random_matrix(rng, 4, 64, 127, 6),
                    old=rng.integers(0, 1 << 16, (4, 64)).astype(np.uint16), **chosen)


def test_only_active_computing_rows_change():
    job = make()
    got = job.expected()
    want = mlp(MxMatrix(job.x.codes[1:3], job.x.scales[1:3]), job.weights).y
    assert (got[1:3] == want).all() and (got[[0, 3]] == job.old[[0, 3]]).all()


def test_scores_decide_in_64_bits():
    scores = np.full((4, 16), 2**31 - 1, dtype=np.int32)
    scores[1] *= -1
    job = make(scores=scores, threshold=16 * (2**31 - 1))
    assert job.index == 0b0010
    assert [i.opcode for i in job.program()].count(Opcode.SCORES) == 4


def test_nothing_of_the_image_overlaps():
    job = make(scores=np.zeros((4, 16), dtype=np.int32), offset=8192)
    spans = sorted((at, at + len(data)) for at, data in job.image())
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:])), spans
    assert spans[0][0] == 8192


def test_too_many_slots():
    with pytest.raises(ValueError, match="names slots beyond the 4 of x"):
        make(active=0b10000)


def test_the_walk_visits_every_beat_and_every_output():
    """The plain walk agrees with the packed stream: gate row 0 of block 0 first, the last down row last."""
    rng = np.random.default_rng(3)
    weights = walk.random_layer(rng, 96, 64)
    stream = pack_layer(CONFIG, weights)
    assert (unpack_layer(CONFIG, stream, 96, 64).down.codes == weights.down.codes).all()
    passes = walk.passes(CONFIG, 3, 2, rows=2)
    beats = walk.weight_beats(CONFIG, stream, [phase_beats(CONFIG, 128, 3), phase_beats(CONFIG, 96, 2)])
    macs = [item for step in passes for item in step.macs]
    assert sorted({beat for _, beat in macs}) == list(range(len(beats))) and len(macs) == 2 * len(beats)
    width = 32 * CONFIG.rows
    first = np.frombuffer(beats[0].to_bytes(width + CONFIG.rows, "little"), dtype=np.int8)
    assert (first[:32] == weights.gate.codes[0, :32]).all() and (first[32:64] == weights.up.codes[0, :32]).all()
    assert first.view(np.uint8)[width] == weights.gate.scales[0, 0]
    last = np.frombuffer(beats[-1].to_bytes(width + CONFIG.rows, "little"), dtype=np.int8)
    assert (last[width - 32:width] == weights.down.codes[-1, -32:]).all()
    drains = [d for step in passes if step.phase == Phase.DOWN for d in step.drains if d["local"] == 0]
    assert [d["block"] for d in drains if d["last"]] == [0, 1, 2]
