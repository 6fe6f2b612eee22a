"""The replay gate that a user asked for."""

from host.settings import Settings, SettingsError, json_number
from model.config import ModelConfig
from model.gates import ChangeGate, DenseGate, Gate, TasGate

GATES = {"tas": TasGate, "change": ChangeGate}


def choose_gate(settings: Settings, config: ModelConfig) -> tuple[Gate, dict[str, object]]:
    """The gate and a JSON-ready report on it. Raises :exc:`~host.settings.SettingsError` for unfit thresholds."""
    if settings.dense or settings.ratio == 0:
        return DenseGate(), {"name": "dense"}
    thresholds = settings.threshold
    if len(thresholds) not in (1, config.layers):
        raise SettingsError(f"{len(thresholds)} thresholds for a model of {config.layers} layers; "
                            "give one, or one per layer")
    gate = GATES[settings.gate](thresholds if len(thresholds) > 1 else thresholds[0], joint_pairs=settings.joint_pairs)
    report = {"name": settings.gate, "thresholds": [json_number(t) for t in thresholds],
              "joint_pairs": settings.joint_pairs, "target_ratio": settings.ratio}
    return gate, report
