"""What the gates compare, and which rows replay by it.

Source: FastCar (arXiv:2505.14709), eq. 5; the change gate is this project's (model/gates/).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from model.hf.config import ReplayConfig


def attention_statistic(variant: str, query: Tensor, key: Tensor) -> np.ndarray:
    """Temporal attention score of every row, float32 ``[rows]``.

    ``query`` ``[rows, heads, d]`` of the token and ``key`` ``[rows, kv_heads, d]`` of its predecessor, both after
    RoPE; ``heads`` is a multiple of ``kv_heads``, each key head serves as many queries as attention lets it.
    """
    rows, heads, width = query.shape
    query = query.float().view(rows, key.shape[1], -1, width)
    key = key.float().unsqueeze(2)
    if variant == "cosine":
        scores = torch.nn.functional.cosine_similarity(query, key, dim=-1)
    else:
        scores = (query * key).sum(-1) / math.sqrt(width)
    return scores.flatten(1).mean(1).cpu().numpy()


def change_statistic(x: Tensor, reference: Tensor) -> np.ndarray:
    """Relative change of MLP inputs ``[rows, hidden]`` against ``reference``, float32 ``[rows]``."""
    x = x.float()
    return ((x - reference.float()).norm(dim=1) / x.norm(dim=1)).cpu().numpy()


def replays(config: ReplayConfig, threshold: float, statistic: np.ndarray, ages: np.ndarray) -> np.ndarray:
    """Rows, bool ``[rows]``, that replay.

    ``ages`` ``[rows]`` counts how often in a row the cached values have been replayed already. A NaN never replays.
    """
    replay = statistic <= threshold if config.variant == "change" else statistic >= threshold
    if config.max_consecutive is not None:
        replay = replay & (ages < config.max_consecutive)
    if config.groups == "pairs":
        return np.tile(replay.reshape(2, -1).all(axis=0), 2)
    if config.groups == "batch":
        return np.full(len(replay), replay.all())
    return replay
