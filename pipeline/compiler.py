"""Whether this machine can compile what ``torch.compile`` makes."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path


def available() -> bool:
    """Whether the machine has what torch's compiler needs on a CPU: a C++ compiler and Python's headers."""
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return shutil.which(os.environ.get("CXX", "g++")) is not None and headers.is_file()
