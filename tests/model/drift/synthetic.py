"""Results with known numbers, as a study would store them."""

from __future__ import annotations

import numpy as np

from model.drift.plan import Run
from model.drift.results import Result


def result(run: Run, *, prompts: int = 6, frames: int = 24, layers: int = 2, ratio: np.ndarray | float = 0.0,
           distance: np.ndarray | float = 0.0, error: np.ndarray | float = 0.0, right: np.ndarray | float = 1.0,
           motion: np.ndarray | float = 1.0, ok: float = 1.0, forced: int = 0, seed: int = 0) -> Result:
    """Every series is given over frames, the same for all prompts and layers but for a little noise."""
    rng = np.random.default_rng(seed)
    per_frame = {name: np.broadcast_to(values, frames) for name, values in
                 (("ratio", ratio), ("distance", distance), ("error", error), ("right", right), ("motion", motion))}
    noise = rng.normal(0, 1e-3, (frames, layers, prompts))
    replayed = np.rint(1000 * per_frame["ratio"])[:, None, None].astype(np.int64) + np.zeros((1, layers, prompts), int)
    replayed[0] = 0

    def pictures(name: str) -> np.ndarray:
        return per_frame[name] + np.zeros((prompts, 1))

    arrays = {
        "value": np.array(np.nan if run.gate == "dense" else 0.5), "codes": np.zeros((prompts, frames, 4), np.int32),
        "steps": np.full(frames, 1000), "replayed": replayed, "age": 2.0 * replayed,
        "ages": np.stack([[0, 0, *[replayed[:, layer].sum()], *[0] * (frames - 3)] for layer in range(layers)]),
        "distance": per_frame["distance"][:, None, None] + noise, "size": np.ones((frames, layers, prompts)),
        "squared_error": pictures("error"), "ssim": np.exp(-pictures("error")), "gmsd": pictures("error") / 1e3,
        "right": pictures("right"), "motion": pictures("motion").copy(), "luminance": np.full((prompts, frames), 90.0),
        "energy": np.ones((prompts, frames)), "agreement": np.ones((prompts, frames)),
        "spans": np.array([[0, 7], [0, frames - 1]]),
        **{f"check_{name}": np.full((prompts, 2), ok) for name in ("ok", "colour", "shape", "size", "direction")},
        "check_motion_kept": np.tile(per_frame["motion"][1:].mean(), (prompts, 2)),
    }
    arrays["motion"][:, 0] = np.nan
    if forced:
        arrays |= {f"forced_{name}": arrays[name][..., :forced] for name in ("distance", "size", "replayed", "age")}
        arrays |= {"forced_divergence": np.ones((forced, frames)), "forced_same_best": np.ones((forced, frames))}
    return Result(run, arrays)
