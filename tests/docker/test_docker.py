"""docker/: what can be checked of an image and a cluster without an engine that runs them.

The tests compare the files with the schemas of their readers and with what they promise: nothing published, no secret
written down, no root.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import check_jsonschema
import jsonschema
import kubernetes_validate
import pytest
import ray.autoscaler
import yaml
from docker_files import DOCKER, ROOT, SECRET, VARIABLE, compose, copied, dockerfile, example, lay_out
from packaging.specifiers import SpecifierSet

BIN = Path(sys.executable).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKED = dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
SERVICES = compose()["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
PVC, NETWORK_POLICY, RAYJOB = yaml.safe_load_all((DOCKER / "rayjob.yaml").read_text())
RAY_CLUSTER = RAYJOB["spec"]["rayClusterSpec"]
GROUPS = [RAY_CLUSTER["headGroupSpec"], *RAY_CLUSTER["workerGroupSpecs"]]
LAUNCHER = yaml.safe_load((DOCKER / "cluster.yaml").read_text())
DOCUMENT = (ROOT / "docs" / "docker.md").read_text()
OWN_MACHINES = yaml.safe_load(re.search(r"```yaml\n(cluster_name.*?)```", DOCUMENT, re.DOTALL)[1])


def test_dockerfile_passes_hadolint() -> None:
    done = subprocess.run([BIN / "hadolint", "--no-color", DOCKER / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["compose.yaml", "compose.gpu.yaml"])
def test_compose_file_follows_the_specification(name: str) -> None:
    schemas = Path(check_jsonschema.__file__).parent / "builtin_schemas" / "vendor"
    schema = json.loads((schemas / "compose-spec.json").read_text())
    jsonschema.validate(yaml.safe_load((DOCKER / name).read_text()), schema)


@pytest.mark.parametrize("config", [LAUNCHER, OWN_MACHINES], ids=["cluster.yaml", "docs/docker.md"])
def test_launcher_configuration_is_accepted_by_ray(config: dict[str, Any]) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(config, schema)
    validate_config(prepare_config(copy.deepcopy(config)))


def test_launcher_starts_workers_before_somebody_asks_for_them() -> None:
    """Stages count the CPUs that are there; the head has none."""
    kinds = LAUNCHER["available_node_types"]
    assert kinds[LAUNCHER["head_node_type"]]["resources"]["CPU"] == 0
    assert 1 <= kinds["worker"]["min_workers"] <= kinds["worker"]["max_workers"] <= LAUNCHER["max_workers"]


def test_launcher_finds_in_the_image_what_it_starts_workers_with() -> None:
    """It does so from inside the head's container; without them workers never come."""
    last_stage = (DOCKER / "Dockerfile").read_text().rpartition("FROM base\n")[2]
    installed = re.search(r"apt-get install (?:--\S+ )*([^&\\]+)", last_stage)[1].split()
    assert {"openssh-client", "rsync"} <= set(installed)


def test_launcher_gives_workers_another_profile_than_the_head() -> None:
    """The head's may start machines."""
    kinds = LAUNCHER["available_node_types"].values()
    profiles = [kind["node_config"]["IamInstanceProfile"]["Arn"] for kind in kinds]
    assert len(profiles) == len(set(profiles)) == 2


def test_kubernetes_knows_every_field() -> None:
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": {}, **group["template"]} for group in GROUPS]
    for resource in [PVC, NETWORK_POLICY, *pods]:
        kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


# Fields of KubeRay's ray.io/v1, as of its version 1.7: those that must be there, and further ones.
KUBERAY = {
    "RayJob": ({"apiVersion", "kind", "metadata", "spec"}, {"status"}),
    "RayJobSpec": (
        {"entrypoint", "rayClusterSpec"},
        {"activeDeadlineSeconds", "backoffLimit", "clusterSelector", "deletionStrategy", "entrypointNumCpus"}
        | {"entrypointNumGpus", "entrypointResources", "jobId", "managedBy", "metadata", "preRunningDeadlineSeconds"}
        | {"runtimeEnvYAML", "shutdownAfterJobFinishes", "submissionMode", "submitterConfig", "submitterPodTemplate"}
        | {"suspend", "ttlSecondsAfterFinished"},
    ),
    "RayClusterSpec": (
        {"headGroupSpec", "rayVersion"},
        {"authOptions", "autoscalerOptions", "enableInTreeAutoscaling", "gcsFaultToleranceOptions"}
        | {"headServiceAnnotations", "managedBy", "suspend", "upgradeStrategy", "workerGroupSpecs"},
    ),
    "AuthOptions": ({"mode"}, {"enableK8sTokenAuth", "secretName"}),
    "HeadGroupSpec": (
        {"rayStartParams", "template"},
        {"enableIngress", "headService", "labels", "resources", "serviceType"},
    ),
    "WorkerGroupSpec": (
        {"groupName", "maxReplicas", "minReplicas", "rayStartParams", "replicas", "template"},
        {"idleTimeoutSeconds", "labels", "numOfHosts", "resources", "scaleStrategy", "suspend"},
    ),
}


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("RayJob", RAYJOB),
        ("RayJobSpec", RAYJOB["spec"]),
        ("RayClusterSpec", RAY_CLUSTER),
        ("AuthOptions", RAY_CLUSTER["authOptions"]),
        ("HeadGroupSpec", GROUPS[0]),
        *(("WorkerGroupSpec", group) for group in GROUPS[1:]),
    ],
)
def test_rayjob_has_the_fields_of_kuberay(kind: str, found: dict[str, Any]) -> None:
    required, optional = KUBERAY[kind]
    assert required <= set(found), f"{kind} lacks {required - set(found)}"
    assert set(found) <= required | optional, f"{kind} has no {set(found) - required - optional}"


def test_rayjob_is_one_that_kuberay_can_run() -> None:
    assert (RAYJOB["apiVersion"], RAYJOB["kind"]) == ("ray.io/v1", "RayJob")
    assert RAYJOB["spec"]["submissionMode"] in {"K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode"}
    assert RAYJOB["spec"]["shutdownAfterJobFinishes"], "ttlSecondsAfterFinished has a meaning only then"
    for group in GROUPS:
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        volumes = {volume["name"]: volume for volume in group["template"]["spec"]["volumes"]}
        for container in group["template"]["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        assert volumes["mnvi"]["persistentVolumeClaim"]["claimName"] == PVC["metadata"]["name"]
        assert (
            NETWORK_POLICY["spec"]["podSelector"]["matchLabels"].items()
            <= group["template"]["metadata"]["labels"].items()
        )
    for group in GROUPS[1:]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert int(group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]) >= 1


def test_rayjob_lets_in_who_has_the_token_and_runs_without_privileges() -> None:
    assert RAY_CLUSTER["authOptions"]["mode"] == "token" and RAY_CLUSTER["authOptions"]["secretName"]
    for group in GROUPS:
        pod = group["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == image_user()
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)
            assert {"cpu", "memory"} <= set(container["resources"]["limits"])


def image_user() -> int:
    return int([arguments for instruction, arguments in dockerfile() if instruction == "USER"][-1].split(":")[0])


def test_image_does_not_run_as_root() -> None:
    instructions = [instruction for instruction, _ in dockerfile()]
    last_stage = len(instructions) - instructions[::-1].index("FROM")
    assert "USER" in instructions[last_stage:], "the last stage has no user"
    assert image_user() != 0
    after = instructions[len(instructions) - instructions[::-1].index("USER") :]
    assert "RUN" not in after and "COPY" not in after


def test_image_has_the_python_that_the_project_is_checked_for() -> None:
    version = dict(arguments.split("=") for name, arguments in dockerfile() if name == "ARG")["PYTHON"]
    assert SpecifierSet(PROJECT["project"]["requires-python"]).contains(version)
    assert version.startswith(PROJECT["tool"]["mypy"]["python_version"] + ".")


def test_image_installs_the_locked_versions_and_no_others() -> None:
    runs = " ".join(arguments for name, arguments in dockerfile() if name == "RUN")
    installs = re.findall(r"pip install ([^&]+)", runs)
    assert len(installs) == 3
    for install in installs:
        assert "--constraint requirements.lock" in install or "--requirement torch.lock" in install
    extras = re.search(r"'\.\[(.*)]'", runs)[1].split(",")
    assert set(extras) == set(PROJECT["project"]["optional-dependencies"]) - {"dev", "docs", "vision", "sklearn"}


def test_kuberay_is_told_the_locked_ray() -> None:
    assert RAY_CLUSTER["rayVersion"] == LOCKED["ray"]


def gigabytes(text: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(Gi|G|g|)", text).groups()
    return float(number) * (1.074 if unit == "Gi" else 1.0)


def test_imagenet_fits_on_the_disks() -> None:
    """docs/scaling.md: its shards take 34 GB. A node has them once, besides the image and what Ray spills."""
    shards, photographs = 34, 150
    disks = [kind["node_config"]["BlockDeviceMappings"][0]["Ebs"] for kind in LAUNCHER["available_node_types"].values()]
    assert all(disk["VolumeSize"] >= 2 * shards + 50 for disk in disks)
    for group in GROUPS[1:]:
        needs = group["template"]["spec"]["containers"][0]["resources"]
        assert gigabytes(needs["requests"]["ephemeral-storage"]) >= 1.5 * shards
    assert gigabytes(PVC["spec"]["resources"]["requests"]["storage"]) >= photographs + 3 * shards
    slurm = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", (DOCKER / "slurm.sh").read_text(), re.MULTILINE))
    assert gigabytes(slurm["tmp"]) >= 2 * shards
    assert int(slurm["cpus-per-task"]) >= 8 * int(slurm["gpus-per-node"]) and gigabytes(slurm["mem"]) >= 190


def test_every_image_has_a_version() -> None:
    stages = re.findall(r"AS ([\w-]+)", (DOCKER / "Dockerfile").read_text())
    bases = [arguments.split()[0] for name, arguments in dockerfile() if name == "FROM"]
    foreign = [base for base in bases if base not in stages and not base.startswith("build-")]
    foreign += [service["image"] for name, service in SERVICES.items() if name not in OURS]
    assert foreign
    for image in foreign:
        assert re.search(r":(v?\d+\.\d+|\$\{PYTHON})", image), f"{image} may be another one tomorrow"


def test_build_sees_what_the_image_copies_and_nothing_else() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == set(copied())


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image")
    lay_out(folder)
    return folder


def test_dvc_finds_the_study_in_the_image(image: Path) -> None:
    commands = " ".join(arguments for name, arguments in dockerfile() if name == "RUN")
    without_git = shlex.split(re.search(r"dvc (config [^&]+)", commands)[1])
    code = f"import sys; from dvc.cli import main; sys.exit(main({without_git}) or main(['stage', 'list']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=image, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "train@boston-mnvi" in done.stdout


def test_image_has_the_files_that_stages_depend_on(image: Path) -> None:
    stages = yaml.safe_load((image / "dvc.yaml").read_text())["stages"].values()
    needed = [dependency for stage in stages for dependency in (stage.get("do") or stage)["deps"]]
    made_by_stages = re.compile(r"data\b|\$\{study\.results}")
    missing = [name for name in needed if not made_by_stages.match(name) and not (image / name).exists()]
    assert needed and not missing


def test_make_installs_nothing_in_the_image(image: Path) -> None:
    (image / ".venv/bin").mkdir(parents=True)
    (image / ".venv/bin/python").symlink_to(sys.executable)
    (image / ".venv/.installed").touch()
    done = subprocess.run(["make", "--dry-run", "study"], cwd=image, capture_output=True, text=True, check=True)
    assert "dvc repro" in done.stdout
    assert "install" not in done.stdout


def test_published_ports_are_on_the_loopback_interface_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(published) == 3
    for port in published:
        address, outside, inside = port.split(":")
        assert address == "127.0.0.1"
        # So that http://mlflow:5000 is right inside and, with a line in /etc/hosts, outside.
        assert outside == inside


def test_database_is_reached_by_mlflow_alone() -> None:
    assert compose()["networks"]["database"]["internal"]
    assert {name for name, service in SERVICES.items() if "database" in service["networks"]} == {"mlflow", "postgres"}
    assert SERVICES["postgres"]["networks"] == ["database"]


@pytest.mark.parametrize("name", SERVICES)
def test_service_is_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"] and "cap_add" not in service and "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert {"cpus", "memory"} <= set(service["deploy"]["resources"]["limits"])


@pytest.mark.parametrize("name", sorted(OURS))
def test_home_in_memory_belongs_to_the_user(name: str) -> None:
    homes = [place for place in SERVICES[name]["tmpfs"] if place.startswith("/home")]
    assert homes == [f"/home/mnvi:uid={image_user()},gid={image_user()},mode=0700"]


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"study"}))
def test_service_tells_whether_it_is_well(name: str) -> None:
    """Ours by the image's check."""
    assert any(instruction == "HEALTHCHECK" for instruction, _ in dockerfile())
    assert ("healthcheck" in SERVICES[name]) is (name not in OURS)


def test_the_head_has_the_folders_of_the_study() -> None:
    """So that a job on it can be `make study`, and goes on from what the other has run."""
    for what in ("volumes", "tmpfs"):
        assert SERVICES["head"][what] == SERVICES["study"][what]
    places = {volume.split(":")[1] for volume in SERVICES["head"]["volumes"] if ":" in volume}
    [mounts] = [
        {mount["mountPath"] for mount in container["volumeMounts"]}
        for container in GROUPS[0]["template"]["spec"]["containers"]
    ]
    assert places - {"/mirror"} <= mounts


def test_the_data_mirror_is_a_folder_or_an_empty_volume() -> None:
    for name in ("head", "study"):
        assert f"{example()['MNVI_DATA_MIRROR']}:/mirror:ro" in SERVICES[name]["volumes"]
        assert SERVICES[name]["environment"]["MNVI_DATA_MIRROR"] == "/mirror"
    given = compose({**example(), "MNVI_DATA_MIRROR": "/srv/data"})
    assert "/srv/data:/mirror:ro" in given["services"]["study"]["volumes"]
    assert example()["MNVI_DATA_MIRROR"] in given["volumes"], "compose knows no volume that is not declared"


def test_nobody_starts_before_whom_it_needs() -> None:
    needed = {name: service.get("depends_on", {}) for name, service in SERVICES.items()}
    assert all(wish == {"condition": "service_healthy"} for wishes in needed.values() for wish in wishes.values())
    edges = {name: set(wishes) for name, wishes in needed.items()}
    assert edges == {
        "study": {"worker"},
        "worker": {"head"},
        "head": {"mlflow"},
        "mlflow": {"postgres", "s3"},
        "postgres": set(),
        "s3": set(),
    }


@pytest.mark.parametrize("name", ["head", "worker"])
def test_object_store_fits_into_shared_memory(name: str) -> None:
    store = int(re.search(r"--object-store-memory=(\d+)", SERVICES[name]["command"])[1])
    assert SERVICES[name]["shm_size"].endswith("g")
    assert store <= 0.75 * int(SERVICES[name]["shm_size"][:-1]) * 1024**3


def test_example_lists_the_variables_that_compose_reads() -> None:
    used = [match.groups() for match in VARIABLE.finditer((DOCKER / "compose.yaml").read_text())]
    assert {name for name, _, _ in used} == set(example())
    for name, sign, default in used:
        value = example()[name]
        if SECRET.search(name) or not value:
            assert value == "" and sign == "?", f"{name} must be empty in env.example and demanded by compose"
        else:
            assert (sign, default) == ("-", value), f"{name} has two defaults"


def test_no_secret_is_written_down() -> None:
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            if SECRET.search(key):
                assert re.fullmatch(r"<\w+>", str(value)), f"{name}: {key} does not come from the environment"
    for group in GROUPS:
        for variable in group["template"]["spec"]["containers"][0]["env"]:
            assert ("valueFrom" in variable) is bool(re.search("PASSWORD|USERNAME", variable["name"]))
    assert not [arguments for name, arguments in dockerfile() if name in {"ARG", "ENV"} and SECRET.search(arguments)]
    for file in [*DOCKER.glob("*"), ROOT / ".dockerignore"]:
        if file.name != ".env":
            assert not re.search(r"\b[0-9a-f]{20,}\b|://[^/\s@:]+:[^/\s@]+@|AKIA[0-9A-Z]{16}", file.read_text()), file


def test_documented_line_makes_the_secrets(tmp_path: Path) -> None:
    line = re.search(r"^ +(\(umask 077; .*env\.example > docker/\.env\))$", DOCUMENT, re.MULTILINE)[1]
    (tmp_path / "docker").mkdir()
    shutil.copy(DOCKER / "env.example", tmp_path / "docker")
    subprocess.run(["sh", "-c", line], cwd=tmp_path, check=True)
    made = tmp_path / "docker/.env"
    values = dict(line.split("=", 1) for line in made.read_text().splitlines() if line and line[0] != "#")
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    secret = [values[name] for name, value in example().items() if not value]
    assert len(set(secret)) == len(secret) == 6 and all(len(value) >= 32 for value in secret)
    assert all(values[name] == value for name, value in example().items() if value)


def test_no_documented_command_has_a_secret_among_its_arguments() -> None:
    """Other users of the machine see them."""
    made = re.findall(r"^ +(.*create secret .*)$", DOCUMENT, re.MULTILINE)
    assert len(made) == 2
    for line in made:
        literals = [part.partition("=")[2] for part in line.split() if part.startswith("--from-literal=")]
        assert "--from-file" in line and all(literal.startswith("username=") for literal in literals), line


def test_secrets_are_ignored_by_git() -> None:
    done = subprocess.run(["git", "check-ignore", "--quiet", "docker/.env"], cwd=ROOT)
    assert done.returncode == 0
