import sys
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def same_start_for_every_test() -> Iterator[None]:
    """Seeds torch and clears what one test could hand to the next, so that order and worker do not matter."""
    torch.manual_seed(0)
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)
    # Dynamo gives up on a function after eight recompilations, counted over the whole process.
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
