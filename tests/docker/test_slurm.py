"""docker/slurm.sh: with stand-ins for SLURM and Ray, and on a real SLURM of one node if it is installed."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from docker_files import DOCKER, ROOT

from tools.ray_nodes import free_port

SCRIPT = DOCKER / "slurm.sh"
PATIENCE = 900.0
# A command that notes its arguments and some of its environment, and what it then does.
STAND_IN = """#!/usr/bin/env bash
echo "{name} $*" >> "$LOG"
{does}
"""
DOES = {
    "scontrol": 'printf "%s\\n" one two three',
    # The options of srun end where a command begins; it runs here.
    "srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"',
    "hostname": 'echo "fe80::1 10.0.0.1 10.0.0.2"',
    # The job server answers at the second attempt; a node stays until it is told to end.
    "ray": """[[ $1 == job ]] && { [ -e "$LOG.asked" ]; status=$?; touch "$LOG.asked"; exit $status; }
echo "token ${#RAY_AUTH_TOKEN} ${RAY_ADDRESS:-none}" >> "$LOG"
trap 'echo "node ended" >> "$LOG"; exit 0' TERM
sleep 60 >/dev/null 2>&1 & wait $!""",
}

BOTH_ARE_UP = 'until [ "$(grep --count ^token "$LOG")" = 2 ]; do sleep 0.1; done'


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "study"
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/python").symlink_to(sys.executable)
    for name, does in DOES.items():
        command = folder / ".venv/bin" / name
        command.write_text(STAND_IN.format(name=name, does=does))
        command.chmod(0o755)
    return folder


def start(study: Path, *command: str) -> subprocess.Popen[str]:
    variables = {
        "LOG": str(study / "log"),
        "SLURM_SUBMIT_DIR": str(study),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "some[1-3]",
        "SLURM_CPUS_PER_TASK": "64",
        "SLURM_GPUS_ON_NODE": "8",
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MNVI_"))}
    return subprocess.Popen(
        ["bash", str(SCRIPT), *command],
        env={**environment, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def lines(study: Path, beginning: str) -> list[str]:
    return [line for line in (study / "log").read_text().splitlines() if line.startswith(beginning)]


def test_a_ray_node_starts_on_each_machine_and_ends_with_the_study(study: Path) -> None:
    running = start(study, "bash", "-c", f'echo "study $RAY_ADDRESS $MNVI_STORAGE $MNVI_CLUSTER_WAIT"; {BOTH_ARE_UP}')
    said, complaints = running.communicate(timeout=60)
    assert running.returncode == 0, complaints
    assert said.strip() == f"study http://127.0.0.1:20057 {study}/work/storage 600"
    head, others = lines(study, "ray start")
    assert "--head --node-ip-address=10.0.0.1 --port=20056" in head and "--dashboard-host=127.0.0.1" in head
    assert "--address=10.0.0.1:20056" in others and "--head" not in others
    assert all("--num-cpus=64 --num-gpus=8" in one for one in (head, others))
    _, first, second = lines(study, "srun")
    assert "--nodes=1 --ntasks=1 --ntasks-per-node=1 --overlap --nodelist=one" in first
    assert "--nodes=2 --ntasks=2 --ntasks-per-node=1 --overlap --exclude=one" in second
    assert lines(study, "token") == ["token 64 none"] * 2
    assert lines(study, "node ended") == ["node ended"] * 2


def test_the_token_is_not_among_arguments(study: Path) -> None:
    running = start(study, "bash", "-c", 'echo "$RAY_AUTH_TOKEN"')
    token = running.communicate(timeout=60)[0].strip()
    assert len(token) == 64 and token not in (study / "log").read_text()


def test_a_study_that_fails_fails_the_job(study: Path) -> None:
    running = start(study, "bash", "-c", "exit 3")
    running.communicate(timeout=60)
    assert running.returncode == 3 and lines(study, "node ended")


def test_the_end_of_its_time_reaches_the_study(study: Path) -> None:
    works = "trap 'echo checkpoint; exit 0' TERM; echo at work; sleep 60 >/dev/null 2>&1 & wait $!"
    running = start(study, "bash", "-c", f"{BOTH_ARE_UP}; {works}")
    assert running.stdout is not None and running.stdout.readline() == "at work\n"
    running.send_signal(signal.SIGTERM)  # as --signal=B:TERM@300 does, to the script alone
    said, _ = running.communicate(timeout=60)
    assert said == "checkpoint\n" and running.returncode == 143
    assert len(lines(study, "node ended")) == 2


def test_a_head_that_does_not_start_is_named(study: Path) -> None:
    (study / ".venv/bin/ray").write_text("#!/usr/bin/env bash\nexit 1\n")
    running = start(study, "true")
    complaints = running.communicate(timeout=60)[1]
    assert running.returncode == 1 and "Ray's head did not start on one" in complaints


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """A SLURM of this machine alone, with its own key; yields the variables that its commands need."""
    folder.chmod(0o755)
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    files = {name: folder / f"munge.{name}" for name in ("socket", "pid", "log", "seed")}
    munge = ["munged", "--force", "--foreground", f"--socket={files['socket']}", f"--key-file={key}"]
    munge += [f"--{name}-file={files[name]}" for name in ("pid", "log", "seed")]
    host, settings = socket.gethostname(), folder / "slurm.conf"
    settings.write_text(
        f"""ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={files["socket"]}
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} RealMemory=4000 TmpDisk=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""
    )
    variables = {**os.environ, "SLURM_CONF": str(settings)}
    daemons = [munge, ["slurmctld", "-D", "-f", str(settings)], ["slurmd", "-D", "-f", str(settings)]]
    with ExitStack() as running:
        for number, command in enumerate(daemons):
            log = running.enter_context((folder / f"daemon-{number}.log").open("wb"))
            process = subprocess.Popen(command, stdout=log, stderr=log)
            running.callback(process.wait)
            running.callback(process.terminate)
            time.sleep(1.0)
        yield variables


@pytest.mark.soak
@pytest.mark.skipif(
    os.getuid() != 0 or not all(map(shutil.which, ("munged", "slurmctld", "slurmd", "sbatch"))),
    reason="needs root and Debian's packages slurm-wlm and munge",
)
def test_a_real_slurm_runs_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from remote_study import AWAY, enter, make_cells, scores

    study = enter(tmp_path, monkeypatch)
    cells = make_cells(1, 1, searched=False, experiment={"epochs": 1, "milestones": []})
    (study / ".venv").symlink_to(Path(sys.executable).parents[1])
    (tmp_path / "slurm").mkdir()
    ours = ["--nodes=1", "--gpus-per-node=0", "--cpus-per-task=2", "--mem=0", "--tmp=0", "--wait"]
    with slurm(tmp_path / "slurm") as variables:
        done = subprocess.run(
            ["sbatch", *ours, "--output=slurm.log", str(SCRIPT), "python", "-m", "pipeline.submission"],
            cwd=study,
            env={**variables, **AWAY, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert done.returncode == 0, done.stderr + (study / "slurm.log").read_text()
    assert set(scores(study)) == {cell.name for cell in cells}
