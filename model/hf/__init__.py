"""Replay on any LLaMA-family decoder of Hugging Face ``transformers``.

    enable_replay(model, ReplayConfig(variant="paper", thresholds=0.4, tokens_per_frame=256, stride=257))
    model.generate(...)
    print(replay_summary(model))
    disable_replay(model)

Source: FastCar (arXiv:2505.14709), eq. 5 and 8.
"""

try:
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise ImportError("model.hf needs the package transformers; pip install 'transformers>=4.57,<5.25'") from error

from model.hf.calibrate import calibrate_replay
from model.hf.config import ReplayConfig
from model.hf.errors import FrameLayoutError, ReplayError
from model.hf.hook import disable_replay, enable_replay, replay_statistics
from model.hf.preset import ReplayPreset
from model.hf.summary import replay_summary

__all__ = ["FrameLayoutError", "ReplayConfig", "ReplayError", "ReplayPreset", "calibrate_replay", "disable_replay",
           "enable_replay", "replay_statistics", "replay_summary"]
