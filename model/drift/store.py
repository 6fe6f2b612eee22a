"""Results of a study on disk: every finished rollout is kept, and a second run goes on with what is missing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from model.drift.plan import Settings


class StoreError(Exception):
    """A folder that holds the results of another study, or damaged ones."""


class Store:
    """A folder with the results of one :class:`~model.drift.plan.Settings`.

    Parameters
    ----------
    folder : :class:`~pathlib.Path`
        Made if need be; ``settings.json``, ``gates.json``, ``thresholds.json``, ``runs/*.npz``, and ``scratch/``, which
        may be deleted.

    Raises
    ------
    StoreError
        It holds the results of other settings.
    """

    def __init__(self, folder: Path, settings: Settings):
        self.folder = folder
        for part in (folder / "runs", folder / "scratch"):
            part.mkdir(parents=True, exist_ok=True)
        path = folder / "settings.json"
        ours = dataclasses.asdict(settings)
        if path.is_file():
            self._refuse("a study", json.loads(path.read_text()), ours)
        write(path, json.dumps(ours, indent=2) + "\n")

    def claim(self, gate: str, options: Mapping[str, Any]) -> None:
        """Note how ``gate`` is set besides its threshold. Raises StoreError where results of it were made otherwise."""
        path = self.folder / "gates.json"
        known = json.loads(path.read_text()) if path.is_file() else {}
        ours = json.loads(json.dumps(options))
        if gate in known:
            self._refuse(f"a gate {gate}", known[gate], ours)
        write(path, json.dumps({**known, gate: ours}, indent=2, sort_keys=True) + "\n")

    def _refuse(self, what: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
        different = [f"{name} {theirs.get(name)!r} there, {ours.get(name)!r} here"
                     for name in sorted({*ours, *theirs}) if theirs.get(name) != ours.get(name)]
        if different:
            raise StoreError(f"{self.folder} holds {what} with other settings ({'; '.join(different)}); "
                             "give the same settings, or another folder with --out")

    def scratch(self, name: str) -> Path:
        """Path of a large intermediate file."""
        return self.folder / "scratch" / name

    def has(self, name: str) -> bool:
        """Whether the run ``name`` is finished."""
        return self._run(name).is_file()

    def save(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep the results of the run ``name``."""
        partial = self._run(name).with_suffix(".partial")
        with partial.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **dict(arrays))
        partial.replace(self._run(name))

    def load(self, name: str) -> dict[str, np.ndarray]:
        """The results of the finished run ``name``. Raises StoreError for a damaged file."""
        try:
            with np.load(self._run(name)) as content:
                return dict(content)
        except (OSError, ValueError, EOFError) as error:
            raise StoreError(f"{self._run(name)} is missing or damaged ({error}); delete it and run again") from error

    @property
    def thresholds(self) -> dict[str, Any]:
        """Calibrated points, see :mod:`model.drift.thresholds`."""
        path = self.folder / "thresholds.json"
        return json.loads(path.read_text()) if path.is_file() else {}

    def save_thresholds(self, thresholds: Mapping[str, Any]) -> None:
        """Keep ``thresholds`` in place of those before."""
        write(self.folder / "thresholds.json", json.dumps(thresholds, indent=2, sort_keys=True) + "\n")

    def _run(self, name: str) -> Path:
        return self.folder / "runs" / f"{name}.npz"


def write(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)
