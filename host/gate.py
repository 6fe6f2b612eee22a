"""The replay gate that a user asked for."""

from host.settings import Settings, SettingsError, json_number
from model.gates import ChangeGate, DenseGate, FloatChangeGate, Gate, TasGate
from model.presets import load_presets
from model.transformer import Transformer


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
        return build_gate(settings, settings.threshold, transformer.config.layers)
    if settings.variant != "paper":
        raise SettingsError(f"replay ratios are calibrated for variant paper of the score, not {settings.variant!r}; "
                            "give a --threshold")
    curve = load_presets(transformer, settings.model).curve(settings.gate, settings.joint_pairs)
    return build_gate(settings, (curve.threshold(settings.ratio),), transformer.config.layers)


def build_gate(settings: Settings, thresholds: tuple[float, ...], layers: int, *,
               quantised: bool = True) -> tuple[Gate, dict[str, object]]:
    """The gate with ``thresholds``, one or one per layer, and a report. Raises SettingsError for another number.

    ``quantised``: the change gate compares MX codes, as a board does; else values of the model's own precision.
    """
    if len(thresholds) not in (1, layers):
        raise SettingsError(f"{len(thresholds)} thresholds for a model of {layers} layers; "
                            "give one, or one per layer")
    given = thresholds if len(thresholds) > 1 else thresholds[0]
    gate: Gate = (ChangeGate if quantised else FloatChangeGate)(given, joint_pairs=settings.joint_pairs)
    if settings.gate == "tas":
        gate = TasGate(given, joint_pairs=settings.joint_pairs, variant=settings.variant)
    report: dict[str, object] = {
        "name": settings.gate, "thresholds": [json_number(t) for t in thresholds], "joint_pairs": settings.joint_pairs,
        "target_ratio": settings.ratio if settings.threshold is None else None}
    return gate, report
