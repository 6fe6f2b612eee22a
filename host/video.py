"""Frames to files: one PNG each, and an H.264 video that browsers play."""

import os
import subprocess
from pathlib import Path

import imageio.v3
import imageio_ffmpeg
import numpy as np


class OutputError(Exception):
    """The results cannot be written where they should go."""


def write_pngs(folder: Path, frames: np.ndarray) -> None:
    """``000.png``, ``001.png`` ... of frames uint8 ``[n, height, width, 3]``; older pictures there are removed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("[0-9]*.png"):
            old.unlink()
        for number, frame in enumerate(frames):
            (folder / f"{number:03d}.png").write_bytes(imageio.v3.imwrite("<bytes>", frame, extension=".png"))
    except OSError as error:
        raise OutputError(f"cannot write pictures to {folder}: {error.strerror or error}; "
                          "free some space or name another folder with --out") from error


def write_mp4(path: Path, frames: np.ndarray, fps: int = 8, upscale: int = 1) -> None:
    """Write frames uint8 ``[n, height, width, 3]`` as H.264, yuv420p, index first, sides made even.

    ``upscale`` repeats every pixel that often in both directions. The file appears when it is complete.

    Raises
    ------
    OutputError
        The disk is full, the folder is not there or cannot be written, or the encoder failed.
    ValueError
        No frames, or an ``upscale`` or ``fps`` below 1.
    """
    if len(frames) == 0 or upscale < 1 or fps < 1:
        raise ValueError(f"a video needs frames, fps and upscale of at least 1, not {len(frames)}, {fps!r}, "
                         f"{upscale!r}")
    large = frames.repeat(upscale, axis=1).repeat(upscale, axis=2)
    # yuv420p halves the colour planes in both directions, so odd sides get one more line of the same.
    large = np.pad(large, ((0, 0), (0, large.shape[1] % 2), (0, large.shape[2] % 2), (0, 0)), mode="edge")
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24",
               "-s", f"{large.shape[2]}x{large.shape[1]}", "-r", str(fps), "-i", "-", "-c:v", "libx264",
               "-pix_fmt", "yuv420p", "-crf", "16", "-movflags", "+faststart", str(part)]
    # Not through imageio: it does not tell whether the encoder failed when it closed the file.
    encoder = subprocess.run(command, input=large.tobytes(), capture_output=True)
    try:
        if encoder.returncode:
            raise OSError(encoder.stderr.decode(errors="replace").strip() or f"ffmpeg exit code {encoder.returncode}")
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OutputError(f"cannot write {path}: {str(error).splitlines()[0]}; "
                          "free some space or name another folder with --out") from error
