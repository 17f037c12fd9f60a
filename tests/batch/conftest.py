import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small tensors: threads would only wait for each other."""
    torch.set_num_threads(1)
