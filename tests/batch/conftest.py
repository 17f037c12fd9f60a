import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "transformers"))  # its tiny models


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small tensors: threads would only wait for each other."""
    torch.set_num_threads(1)
