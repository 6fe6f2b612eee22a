import numpy as np
import pytest
import torch

from host.board import BoardError
from host.compile import compile_model
from host.engine import BoardMlp
from host.golden import GoldenBoard
from host.verify import VerifiedMlp, VerifyError
from hw.config import preset
from model.config import PRESETS, Sampling
from model.engine import IntegerMlp, quantised_weights
from model.frames import FrameLayout
from model.gates import ChangeGate, Decision, DenseGate, RandomGate, TasGate
from model.generate import generate
from model.replay import StepResult
from model.transformer import Transformer

SEED = 99
PROMPTS = ["a red circle moves left", "a small blue square moves up fast"]


@pytest.fixture(scope="module")
def transformer():
    torch.manual_seed(SEED)
    return Transformer(PRESETS["tiny"]).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def weights(transformer):
    return quantised_weights(transformer)


@pytest.fixture
def board():
    with GoldenBoard("tiny") as board:
        yield board


def engine_on(board, weights, tmp_path, **options) -> BoardMlp:
    return BoardMlp(board, compile_model(board.config, weights, tmp_path), PRESETS["tiny"].heads, **options)


@pytest.mark.parametrize("gate", [DenseGate(), TasGate(0.0), TasGate([0.1, -0.1]), ChangeGate(0.5),
                                  ChangeGate(0.6, joint_pairs=True), TasGate(-np.inf), RandomGate(0.5, SEED)])
def test_a_generation_on_the_board_equals_the_integer_engine(transformer, weights, board, gate, tmp_path):
    jobs = []
    engine = engine_on(board, weights, tmp_path, on_job=lambda kind, layer, counters: jobs.append((kind, counters)))
    kwargs = dict(frames=3, sampling=Sampling(cfg_scale=2.0), gate=gate)
    found = generate(transformer, PROMPTS, [1, 2], engine=VerifiedMlp(engine, IntegerMlp(weights)), **kwargs)
    expected = generate(transformer, PROMPTS, [1, 2], engine=IntegerMlp(weights), **kwargs)
    assert found.codes.tolist() == expected.codes.tolist()
    assert found.statistics.summary() == expected.statistics.summary()
    decode = [counters for kind, counters in jobs if kind == "decode"]
    assert sum(c["rows_replayed"] for c in decode) == found.statistics.replayed.sum()
    assert sum(c["rows_replayed"] == 4 for c in decode) == found.statistics.mlp_skips
    assert all((c["weight_bytes"] == 0) == (c["rows_computed"] == 0) for c in decode)


def test_the_host_obeys_the_index_bits_of_the_board(weights, tmp_path):
    class Stubborn(GoldenBoard):
        """Computes slot 0 whatever the mask says."""

        def write_csr(self, address: int, value: int) -> None:
            super().write_csr(address, value | 1 if address == 0x5C else value)

    engine = engine_on(Stubborn("tiny"), weights, tmp_path)
    engine.begin(2, FrameLayout(prelude=1, tokens_per_frame=1, frames=2, stride=1))
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(SEED))
    nobody = Decision(eligible=True, compute=torch.zeros(2, dtype=torch.bool))
    result = engine.step(0, 0, x, nobody)
    assert result.computed.tolist() == [True, False]
    assert result.y[0].abs().sum() > 0 and (result.y[1] == 0).all()


def test_a_second_generation_starts_from_nothing(transformer, weights, board, tmp_path):
    engine = engine_on(board, weights, tmp_path)
    kwargs = dict(frames=2, gate=ChangeGate(0.5), engine=engine)
    first = generate(transformer, PROMPTS[:1], [5], **kwargs).codes
    generate(transformer, PROMPTS, [6, 7], **kwargs)
    assert generate(transformer, PROMPTS[:1], [5], **kwargs).codes.tolist() == first.tolist()


def test_more_rows_than_slots_are_refused(weights, board, tmp_path):
    engine = engine_on(board, weights, tmp_path)
    with pytest.raises(BoardError, match="33 rows do not fit: the board has 32 slots"):
        engine.begin(33, PRESETS["tiny"].layout)
    engine.begin(32, PRESETS["tiny"].layout)


def test_prefill_of_more_tokens_than_slots(weights, board, tmp_path):
    engine = engine_on(board, weights, tmp_path)
    engine.begin(1, PRESETS["tiny"].layout)
    x = torch.randn(70, 64, generator=torch.Generator().manual_seed(SEED))
    golden = IntegerMlp(weights)
    golden.begin(1, PRESETS["tiny"].layout)
    assert torch.equal(engine.prefill(1, x), golden.prefill(1, x))


def test_wrong_use_is_refused(weights, board, tmp_path):
    engine = engine_on(board, weights, tmp_path)
    decision = Decision(eligible=False, compute=torch.ones(1, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="step before begin"):
        engine.step(0, 0, torch.zeros(1, 64), decision)
    engine.begin(1, PRESETS["tiny"].layout)
    with pytest.raises(ValueError, match=r"must be \[1, 64\] in this generation, not \[2, 64\]"):
        engine.step(0, 0, torch.zeros(2, 64), decision)
    with pytest.raises(BoardError, match="17 attention heads; preset 'tiny' adds up at most 16"):
        BoardMlp(board, compile_model(preset("tiny"), weights, tmp_path), heads=17)


def test_a_flipped_weight_bit_fails_verification_with_the_place(transformer, weights, board, tmp_path):
    engine = engine_on(board, weights, tmp_path)
    where = engine.weight_offsets[1] + 64  # behind the first scale beat of layer 1
    board.write_memory(where, board.read_memory(where, 1) ^ 0x40)
    with pytest.raises(VerifyError, match=r"layer 1, prelude, token \d+, element \d+: the board gives .* golden model"):
        generate(transformer, PROMPTS, [1, 2], frames=1, engine=VerifiedMlp(engine, IntegerMlp(weights)))


def test_a_difference_in_a_step_names_layer_step_slot_and_values(weights, board, tmp_path):
    engine, golden = engine_on(board, weights, tmp_path), IntegerMlp(weights)
    verified = VerifiedMlp(engine, golden)
    verified.begin(2, PRESETS["tiny"].layout)
    compute = Decision(eligible=True, compute=torch.tensor([True, True]))
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(SEED))
    verified.step(0, 0, x, compute)
    assert verified.compared == 128
    golden.ring.values[0, 0, 1, 7] = 3.0
    replay = Decision(eligible=True, compute=torch.tensor([False, False]))
    with pytest.raises(VerifyError, match=r"layer 0, step 1 \(frame 0, index 0\), slot 1, element 7: .*3\.0"):
        verified.step(0, 0, x, replay)


def test_a_difference_in_the_index_bits_is_found(weights, board, tmp_path):
    class Contrary(IntegerMlp):
        def step(self, layer: int, index: int, x: torch.Tensor, decision: Decision) -> StepResult:
            return super().step(layer, index, x, Decision(eligible=True, compute=~decision.compute))

    verified = VerifiedMlp(engine_on(board, weights, tmp_path), Contrary(weights))
    verified.begin(2, PRESETS["tiny"].layout)
    decision = Decision(eligible=True, compute=torch.tensor([True, True]))
    with pytest.raises(VerifyError, match="slot 0: the board computed, the golden model replayed"):
        verified.step(0, 0, torch.ones(2, 64), decision)
