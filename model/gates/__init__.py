"""Replay gates: which rows compute a layer's MLP in a step, and which replay its output of one frame earlier.

A gate sees every layer of every step and answers with a :class:`Decision`: the rows that compute and, where a board can
come to them by itself, the rule. Frame 0 never replays.

Source: FastCar (arXiv:2505.14709), eq. 5 and 8, for the temporal attention score; the change gates are this project's.
"""

from model.gates.change import ChangeGate, FloatChangeGate
from model.gates.combined import TasAndChangeGate
from model.gates.controller import ControlledGate
from model.gates.controls import DenseGate, OracleGate, RandomGate
from model.gates.decision import Decision, Gate, Rows, Rule, Step
from model.gates.registry import GATES, THRESHOLD_GATES, GateKind, make_gate
from model.gates.temporal import (
    SCORE_FRACTION_BITS,
    VARIANTS,
    TasGate,
    tas_fixed,
    tas_replays,
    tas_threshold,
    temporal_scores,
)
from model.gates.threshold import ThresholdGate

__all__ = ["GATES", "SCORE_FRACTION_BITS", "THRESHOLD_GATES", "VARIANTS", "ChangeGate", "ControlledGate", "Decision",
           "DenseGate", "FloatChangeGate", "Gate", "GateKind", "OracleGate", "RandomGate", "Rows", "Rule", "Step",
           "TasAndChangeGate", "TasGate", "ThresholdGate", "make_gate", "tas_fixed", "tas_replays", "tas_threshold",
           "temporal_scores"]
