"""All gates by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from model.gates.change import ChangeGate, FloatChangeGate
from model.gates.combined import TasAndChangeGate
from model.gates.controller import ControlledGate
from model.gates.controls import DenseGate, OracleGate, RandomGate
from model.gates.decision import Gate
from model.gates.temporal import TasGate
from model.gates.threshold import ThresholdGate
from model.transformer import Block, Transformer


@dataclass(frozen=True, kw_only=True)
class GateKind:
    """One name that a user may give.

    Parameters
    ----------
    about : :class:`str`
        What it compares, one line.
    make : (value, transformer, options) -> gate
        ``value``: its threshold or ratio.
    gate : class
    scale : ``"threshold"``, ``"ratio"`` or ``"none"``
        What ``value`` is.
    board : :class:`bool`
        Whether a board decides by itself.
    """

    about: str
    make: Callable[..., Gate]
    gate: type
    scale: str = "threshold"
    board: bool = False

    @property
    def high_replays(self) -> bool:
        """Whether rows at or above the threshold replay."""
        return bool(getattr(self.gate, "high_replays", False))

    @property
    def never(self) -> float:
        """Value at which nothing replays."""
        return 0.0 if self.scale == "ratio" else float(getattr(self.gate, "never", 0.0))


def _oracle(value: Any, transformer: Transformer, to_residual: bool, **options: Any) -> Gate:
    mlps = [cast(Block, block).mlp for block in transformer.blocks]
    return OracleGate(value, mlps=mlps, to_residual=to_residual, **options)


GATES: dict[str, GateKind] = {
    "dense": GateKind(about="everything computes", make=lambda value, transformer, **options: DenseGate(),
                      gate=DenseGate, scale="none"),
    "tas": GateKind(about="temporal attention score of the paper, eq. 5: mean over heads of q.k / sqrt(d)",
                    make=lambda value, transformer, **options: TasGate(value, **options), gate=TasGate, board=True),
    "tas-released": GateKind(
        about="the score as the authors' code computes it: query before RoPE", gate=TasGate,
        make=lambda value, transformer, **options: TasGate(value, variant="released", **options)),
    "tas-cosine": GateKind(
        about="the score as a cosine of query and key", gate=TasGate, board=True,
        make=lambda value, transformer, **options: TasGate(value, variant="cosine", **options)),
    "tas-heads": GateKind(
        about="mean of the scores of chosen heads (option heads)", gate=TasGate, board=True,
        make=lambda value, transformer, **options: TasGate(value, **options)),
    "change": GateKind(
        about="change of the MLP input since the cached value was computed, relative to itself, on MX codes",
        make=lambda value, transformer, **options: ChangeGate(value, **options), gate=ChangeGate, board=True),
    "change-layers": GateKind(
        about="the same with a weight for each layer's threshold (option weights)", gate=ChangeGate, board=True,
        make=lambda value, transformer, **options: ChangeGate(value, **options)),
    "change-float": GateKind(
        about="the same in the model's own precision", gate=FloatChangeGate,
        make=lambda value, transformer, **options: FloatChangeGate(value, **options)),
    "change-residual": GateKind(
        about="change of the MLP input times a sensitivity of the layer (option sensitivities), relative to the "
              "residual stream", gate=FloatChangeGate,
        make=lambda value, transformer, **options: FloatChangeGate(value, **options)),
    "tas+change": GateKind(
        about="change where the temporal attention score is at least tau (option tau)", gate=TasAndChangeGate,
        board=True, make=lambda value, transformer, **options: TasAndChangeGate(value, **options)),
    "controlled": GateKind(
        about="change with thresholds that follow a target replay ratio or budget (options target, signal)",
        gate=ControlledGate, board=True, make=lambda value, transformer, **options: ControlledGate(value, **options)),
    "oracle": GateKind(
        about="control: true change of the MLP output, relative to itself", gate=OracleGate,
        make=lambda value, transformer, **options: _oracle(value, transformer, False, **options)),
    "oracle-residual": GateKind(
        about="control: true change of the MLP output, relative to the residual stream", gate=OracleGate,
        make=lambda value, transformer, **options: _oracle(value, transformer, True, **options)),
    "random": GateKind(about="control: chance", gate=RandomGate, scale="ratio",
                       make=lambda value, transformer, **options: RandomGate(value, **options)),
}


def make_gate(name: str, value: Any, *, transformer: Transformer, **options: Any) -> Gate:
    """The gate ``name`` with threshold or ratio ``value``, one or (thresholds) one per layer.

    ``options`` go to the gate: ``joint_pairs``, ``max_age`` and what :data:`GATES` names.
    Raises ValueError for an unknown name.
    """
    if name not in GATES:
        raise ValueError(f"unknown gate {name!r}; known: {', '.join(GATES)}")
    return GATES[name].make(value, transformer, **options)


THRESHOLD_GATES: dict[str, type[ThresholdGate]] = {"tas": TasGate, "change": ChangeGate}
"""Gates with calibrated thresholds in the shipped presets, by name."""
