import gc
import importlib.metadata
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

# Some virtual machines announce AMX but cannot run it; oneDNN then crashes with an illegal instruction in bfloat16. It
# reads this variable when it is loaded, so it has to be set before torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# MLflow's server would start eight more processes for jobs, which the study does not use.
os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")

import pytest
import torch

# Files that take long to make and are the same in every run of the tests.
KEPT = Path("~/.cache/mnvi-tests").expanduser()
# The compiler's default is in /tmp, which machines empty.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(KEPT / "inductor"))

# By default Ray Train looks at its workers every two seconds, and the end of each training waits for that.
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
# By default Ray's workers have a niceness of 15: the other tests would keep the CPUs from them.
os.environ.setdefault("RAY_worker_niceness", "0")
# A process for each training that looks out for nodes which a cloud takes back.
os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")

# A shell makes background processes ignore Ctrl-C, and their children inherit that; tests interrupt their processes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What collection makes stays to the end, millions of objects: looking for garbage among them costs seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: the short ones after them keep all workers busy to the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


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


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of a bucket in S3, on this machine, for tests of the study."""
    from s3_server import s3_server

    with s3_server() as (address, environment), pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield address


@pytest.fixture(scope="session")
def new_store() -> Path:
    """An empty MLflow store to copy: making its tables takes seconds."""
    kept = KEPT / f"mlflow-{importlib.metadata.version('mlflow')}.db"
    if not kept.exists():
        from pipeline.tracking import store

        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:  # another worker may be making one, too
            store.client(f"sqlite:///{folder}/mlflow.db")
            os.replace(f"{folder}/mlflow.db", kept)
    return kept


@pytest.fixture
def folder(new_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder, with an MLflow store of its own."""
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "MNVI_TRACKING_WAIT"):
        monkeypatch.delenv(name, raising=False)
    shutil.copy(new_store, "mlflow.db")
    yield tmp_path
    if "pipeline.tracking.store" in sys.modules:
        sys.modules["pipeline.tracking.store"]._client.cache_clear()


@pytest.fixture(scope="session")
def shared_ray() -> Iterator[ExitStack]:
    """Holds the Ray of :func:`ray_is_up`, if it runs."""
    with ExitStack() as running:
        yield running


@pytest.fixture(scope="module")
def ray_is_up(shared_ray: ExitStack) -> None:
    """A Ray with two CPUs for all tests of this process that do not start one themselves; they leave nothing in it."""
    from pipeline import cluster, private_ray

    cluster.configure()
    import ray

    if not ray.is_initialized():
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        shared_ray.enter_context(private_ray.started(keep_logs=False, num_cpus=2, **quiet))


@pytest.fixture(scope="module")
def ray_is_down(shared_ray: ExitStack) -> None:
    """For tests that start Ray themselves, or see that nobody does."""
    shared_ray.close()
