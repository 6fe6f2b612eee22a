"""One small checkpoint for all tests of this folder."""

import pytest

from model.vilau.loader import load
from model.vilau.prompt import Tokenizer
from tests.model.vilau.folder import VOCAB, write_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Read only: tests that change files copy it."""
    return write_folder(tmp_path_factory.mktemp("vilau") / "model", rope_factor=2.0)


@pytest.fixture(scope="session")
def model(folder):
    return load(folder)


@pytest.fixture(scope="session")
def tokenizer(folder):
    return Tokenizer(folder / "llm", VOCAB)
