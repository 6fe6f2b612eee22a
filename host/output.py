"""The folder that results go to: checked before the work starts, written when it ends."""

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from host.video import OutputError, write_mp4, write_pngs

NEEDED_BYTES = 16 << 20
"""Free space that a run asks for: far more than the small pictures and videos of one take."""


class OutputFolder:
    """``root`` itself for one video; ``root/video-00`` and so on for several. tokens.npy and stats.json go to ``root``.

    Makes the folders and removes what an earlier run left there, so that nothing old passes for a result of this run.

    Raises
    ------
    OutputError
        The folder cannot be made or written, or less than 16 MiB are free.
    """

    def __init__(self, root: Path, videos: int):
        self.root = root
        self.folders = [root] if videos == 1 else [root / f"video-{number:02d}" for number in range(videos)]
        try:
            for folder in self.folders:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "video.mp4").unlink(missing_ok=True)
                for old in (folder / "frames").glob("[0-9]*.png"):
                    old.unlink()
            for name in ("stats.json", "tokens.npy"):
                (root / name).unlink(missing_ok=True)
            with tempfile.TemporaryFile(dir=root) as probe:
                probe.write(b"writable")
            free = shutil.disk_usage(root).free
        except OSError as error:
            raise OutputError(f"cannot write to the output folder {root}: {error.strerror or error}; "
                              "name another one with --out") from error
        if free < NEEDED_BYTES:
            raise OutputError(f"the disk of the output folder {root} is full: {free >> 20} MiB free, "
                              f"{NEEDED_BYTES >> 20} MiB needed; free some space or name another folder with --out")

    def write_videos(self, videos: Sequence[np.ndarray], fps: int, upscale: int) -> None:
        """Pictures and video of each of ``videos``, uint8 ``[frames, height, width, 3]``."""
        for folder, frames in zip(self.folders, videos, strict=True):
            write_pngs(folder / "frames", frames)
            write_mp4(folder / "video.mp4", frames, fps=fps, upscale=upscale)

    def results(self) -> list[str]:
        """Videos that were written, then stats.json."""
        videos = [folder / "video.mp4" for folder in self.folders]
        return [str(path) for path in videos if path.exists()] + [str(self.root / "stats.json")]

    def write_tokens(self, codes: np.ndarray) -> None:
        """tokens.npy: int32 ``[videos, frames, tokens]``."""
        try:
            np.save(self.root / "tokens.npy", codes.astype(np.int32))
        except OSError as error:
            raise _full(self.root / "tokens.npy", error) from error

    def write_stats(self, stats: dict[str, object]) -> None:
        """stats.json, complete or not at all."""
        path, part = self.root / "stats.json", self.root / ".stats.json.part"
        try:
            part.write_text(json.dumps(stats, indent=2) + "\n")
            os.replace(part, path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise _full(path, error) from error


def _full(path: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot write {path}: {error.strerror or error}; free some space or name another folder "
                       "with --out")
