"""Settings of the model's tests."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small matrices gain nothing from threads, and threads that wait for each other on a busy machine lose much."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
