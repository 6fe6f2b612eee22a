"""The replay gate that a user asked for."""

from host.settings import Settings, SettingsError, json_number
from model.gates import ChangeGate, DenseGate, Gate, TasGate
from model.presets import load_presets
from model.transformer import Transformer

GATES: dict[str, type[TasGate] | type[ChangeGate]] = {"tas": TasGate, "change": ChangeGate}


def choose_gate(settings: Settings, transformer: Transformer) -> tuple[Gate, dict[str, object]]:
    """The gate and a JSON-ready report on it.

    Raises
    ------
    SettingsError
        Thresholds that do not fit the model.
    PresetError
        A replay ratio that the model is not calibrated for.
    """
    if settings.threshold is None and settings.ratio == 0:
        return DenseGate(), {"name": "dense"}
    if settings.threshold is not None:
        thresholds = settings.threshold
    else:
        curve = load_presets(transformer, settings.model).curve(settings.gate, settings.joint_pairs)
        thresholds = (curve.threshold(settings.ratio),)
    layers = transformer.config.layers
    if len(thresholds) not in (1, layers):
        raise SettingsError(f"{len(thresholds)} thresholds for a model of {layers} layers; "
                            "give one, or one per layer")
    gate = GATES[settings.gate](thresholds if len(thresholds) > 1 else thresholds[0], joint_pairs=settings.joint_pairs)
    report: dict[str, object] = {
        "name": settings.gate, "thresholds": [json_number(t) for t in thresholds], "joint_pairs": settings.joint_pairs,
        "target_ratio": settings.ratio if settings.threshold is None else None}
    return gate, report
