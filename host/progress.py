"""Progress of a generation on stderr: frame, tokens per second, replay ratio so far, time left."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from model.generate import Progress as GenerationProgress

REFRESH_SECONDS = 0.2


class ProgressBar:
    """Show :meth:`update`, an ``on_step`` callback of :func:`model.generate.generate`. A context manager."""

    def __init__(self, console: Console, frames: int, videos: int):
        self._progress = Progress(
            TextColumn("frame {task.fields[frame]}/" + str(frames)), BarColumn(),
            TextColumn("{task.percentage:3.0f} %  {task.fields[rate]} tokens/s  replay {task.fields[ratio]}"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console)
        self._videos = videos
        self._task = self._progress.add_task("", total=None, frame=0, rate="-", ratio="-")
        self._start = self._shown = time.monotonic()

    def update(self, progress: GenerationProgress) -> None:
        now = time.monotonic()
        if now - self._shown < REFRESH_SECONDS and progress.done < progress.steps:
            return
        self._shown = now
        self._progress.update(
            self._task, completed=progress.done, total=progress.steps, frame=progress.frame + 1,
            rate=f"{progress.done * self._videos / max(now - self._start, 1e-9):.1f}",
            ratio=f"{100 * progress.statistics.replay_ratio_eligible:.0f} %")

    def __enter__(self) -> Self:
        self._progress.start()
        self._start = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._progress.stop()
