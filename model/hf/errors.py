"""Exceptions of replay on Hugging Face models."""


class ReplayError(RuntimeError):
    """Replay cannot work here, or not any more; the message says why and what to do."""


class FrameLayoutError(ReplayError):
    """The tokens that are fed contradict the configured frame layout."""
