"""Runs every part of the check in a process of its own, and prints a report.

A part that crashes, or waits for ever, does not keep the others from running.

    python -m tools.gpu_check                  # on GPUs, or says that there is none
    python -m tools.gpu_check --device cpu     # the same parts with gloo and tiny sizes
    python -m tools.gpu_check --parts ddp speed-mnvi
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pipeline import compiler
from tools.gpu_check.parts import PARTS, SETTINGS

LAST_LINES = 12  # of a failed part's output


@dataclass(frozen=True)
class Outcome:
    part: str
    passed: bool
    seconds: float
    lines: list[str]

    def markdown(self) -> str:
        said = "\n".join(f"    {line}" for line in self.lines)
        return f"- **{self.part}**: {'passed' if self.passed else 'FAILED'} ({self.seconds:.0f} s)\n\n{said}\n"


def machine() -> list[str]:
    """What the figures depend on besides the code."""
    lines = [
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
        f"torch {torch.__version__}, C++ compiler: {'yes' if compiler.available() else 'no'}"
    ]
    if torch.cuda.is_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else "none"
        lines.append(f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}, NCCL {nccl}")
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        memory = properties.total_memory / 2**30
        lines.append(
            f"GPU {index}: {properties.name}, {memory:.0f} GiB, capability {properties.major}.{properties.minor}"
        )
    return lines


def without_gpu() -> str:
    build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for CPUs alone"
    return (
        f"torch {torch.__version__}, {build}, sees no GPU on this machine, so nothing was checked.\n"
        "With a GPU: see that nvidia-smi lists it, and install a torch built for CUDA (docs/gpu.md).\n"
        f"Without one: `python -m tools.gpu_check --device cpu` runs the same parts ({', '.join(PARTS)})\n"
        "on the CPU, with gloo instead of NCCL and tiny sizes; its images per second say nothing about a GPU."
    )


def run(part: str, device: str, limit: float) -> Outcome:
    """Runs a part in a process of its own, and ends it and its workers after this many seconds."""
    command = [sys.executable, "-m", "tools.gpu_check", "--device", device, "--only", part]
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors, start_new_session=True)
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        errors.seek(0)
        lines, said = output.read().splitlines(), errors.read().splitlines()
    if code is None:
        lines += [*said[-LAST_LINES:], f"stopped: not done within {limit:.0f} s"]
    elif code:
        lines += [*said[-LAST_LINES:], f"ended with code {code}"]
    return Outcome(part, code == 0, time.monotonic() - started, lines)


def check(parts: Sequence[str], device: str, minutes: float) -> list[Outcome]:
    until, outcomes = time.monotonic() + 60 * minutes, []
    for part in parts:
        left = until - time.monotonic()
        outcome = run(part, device, left) if left > 0 else Outcome(part, False, 0.0, ["not run: no time was left"])
        outcomes.append(outcome)
        print(outcome.markdown(), flush=True)
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(SETTINGS), default="cuda")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="default: all")
    parser.add_argument("--minutes", type=float, default=10.0, help="limit for all parts together (default: 10)")
    parser.add_argument("--only", choices=list(PARTS), help="run one part in this process, without a limit")
    chosen = parser.parse_args(arguments)
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print(without_gpu(), file=sys.stderr)
        return 1
    if chosen.only:
        with tempfile.TemporaryDirectory() as folder:
            for line in PARTS[chosen.only](SETTINGS[chosen.device], Path(folder)):
                print(line, flush=True)
        return 0
    print(f"## GPU check on {chosen.device}\n\nReport everything from this line on.\n")
    print("\n".join(f"- {line}" for line in machine()) + "\n", flush=True)
    outcomes = check(chosen.parts, chosen.device, chosen.minutes)
    failed = [outcome.part for outcome in outcomes if not outcome.passed]
    took = sum(outcome.seconds for outcome in outcomes)
    print(
        f"{len(outcomes) - len(failed)} of {len(outcomes)} parts passed in {took:.0f} s."
        + (f" Failed: {', '.join(failed)}." if failed else "")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
