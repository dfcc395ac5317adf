import os
import signal
import sys
from collections.abc import Iterator

# Some virtual machines announce AMX without being able to run it; oneDNN believes them and dies of an illegal
# instruction in bfloat16. It reads this when it is first loaded, hence before torch.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# MLflow's server would start eight more processes, for jobs of which the study has none.
os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")

import pytest
import torch

# A shell starts what it puts into the background deaf to Ctrl-C, and processes inherit that; tests interrupt theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
