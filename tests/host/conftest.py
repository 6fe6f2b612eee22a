import dataclasses
import multiprocessing

import pytest
import torch

from model import checkpoint
from model.config import PRESETS
from model.transformer import Transformer
from model.visual import VisualConfig, VisualTokenizer
from tests.host import standin


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for each other make products of a few rows slow on a busy machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A tiny model with random weights on disk."""
    torch.manual_seed(4)
    folder = tmp_path_factory.mktemp("model")
    config = dataclasses.replace(PRESETS["tiny"])
    visual = VisualTokenizer(VisualConfig(codebook=config.codebook, code_dim=4, width=8, context_layers=1))
    checkpoint.save(folder, config, Transformer(config), visual)
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Compiled models of tests stay out of the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def card(tmp_path_factory):
    """Start stand-ins for a card; gives its control and its socket. They end with the test."""
    # Not a fork of this process, which has threads: a fork of one that has imported everything once.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.host.standin"])
    processes = []

    def start(preset: str = "tiny", registers: dict[str, int] | None = None, missing: tuple[str, ...] = ()):
        path = str(tmp_path_factory.mktemp("card") / "socket")
        process = context.Process(target=standin.main, args=(path, preset, registers or {}, missing), daemon=True)
        process.start()
        processes.append(process)
        return standin.Control(path), path

    yield start
    for process in processes:
        process.kill()
        process.join()
