"""Which kind of model a folder holds."""

import json
from pathlib import Path

from model.checkpoint import CheckpointError
from model.vilau.loader import is_vilau
from model.vilau.refusal import refuse_other_kinds

OWN, VILAU = "own", "vila-u"


def kind_of(folder: Path | None) -> str:
    """:data:`OWN` or :data:`VILAU`; None is the model that is shipped. Whether it is complete is left to its loader.

    Raises
    ------
    CheckpointError
        The folder holds a model that replay does not fit, or one that is no text-to-video model by itself.
    """
    if folder is None:
        return OWN
    refuse_other_kinds(folder)
    if is_vilau(folder):
        return VILAU
    try:
        published = json.loads((folder / "config.json").read_text()).get("model_type")
    except (OSError, ValueError, AttributeError):
        return OWN  # the loader says what is wrong with it
    if isinstance(published, str):
        raise CheckpointError(f"{folder} holds a decoder of type {published!r} for transformers, without tokens or "
                              "pictures that are known here; load it there and use model.hf.enable_replay "
                              "(docs/models.md)")
    return OWN
