"""What must not be in the source: ways to run data, and secrets."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = sorted(
    path for folder in ("mnvi", "pipeline", "tools", "benchmarks") for path in (ROOT / folder).rglob("*.py")
)

RUNS_DATA = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
CALLS = {
    "eval": "runs text",
    "exec": "runs text",
    "os.system": "runs a shell",
    "os.popen": "runs a shell",
    "tempfile.mktemp": "gives a name that another may take",
    "yaml.load": "makes any object",
    "yaml.full_load": "makes many objects",
    "yaml.unsafe_load": "makes any object",
    "pd.read_pickle": "unpickles",
    "pandas.read_pickle": "unpickles",
}
METHODS = {"extractall": "writes where an archive says", "extract": "writes where an archive says"}
# Of a call to this function, this argument has to have this value, or must not have it.
DEMANDED = {"torch.load": ("weights_only", True), "hashlib.md5": ("usedforsecurity", False)}
FORBIDDEN = {"shell": True, "allow_pickle": True, "verify": False}


def complaints(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            names = [module] if module else [alias.name for alias in node.names]
            yield from (f"imports {name}" for name in names if name.partition(".")[0] in RUNS_DATA)
        elif isinstance(node, ast.Call):
            yield from (f"line {node.lineno}: {complaint}" for complaint in _about_call(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match("/(var/)?tmp/", node.value):
            yield f"line {node.lineno}: {node.value} is a place that other users can take"


def _about_call(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    given = {keyword.arg: getattr(keyword.value, "value", None) for keyword in node.keywords}
    if name in CALLS:
        yield f"{name} {CALLS[name]}"
    if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
        yield f"{name} {METHODS[node.func.attr]}"
    if name in DEMANDED:
        argument, value = DEMANDED[name]
        if given.get(argument) is not value:
            yield f"{name} without {argument}={value}"
    yield from (f"{name}({key}={value})" for key, value in FORBIDDEN.items() if key in given and given[key] is value)


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from cloudpickle import loads",
        "eval('1')",
        "import os\nos.system('ls')",
        "subprocess.run('ls', shell=True)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text, Loader=yaml.Loader)",
        "tar.extractall(folder)",
        "zipped.extract(name)",
        "requests.get(url, verify=False)",
        "hashlib.md5(data)",
        "tempfile.mktemp()",
        "open('/tmp/result')",
    ],
)
def test_each_danger_is_seen(text: str) -> None:
    assert list(complaints(text))


def test_the_source_runs_no_data() -> None:
    assert len(SOURCE) > 100
    found = {str(path.relative_to(ROOT)): list(complaints(path.read_text())) for path in SOURCE}
    assert not {name: said for name, said in found.items() if said}


def test_one_module_of_the_study_asks_the_internet() -> None:
    """The others talk to Ray and MLflow by their own clients; one knows the error that Ray's lets through."""
    asks = re.compile(
        r"^\s*(?:import|from) (?:urllib\.request|http\.client|requests|urllib3|httpx|aiohttp)\b", re.MULTILINE
    )
    found = {
        path.name: text
        for path in SOURCE
        if path.parts[len(ROOT.parts)] in ("mnvi", "pipeline") and asks.search(text := path.read_text())
    }
    assert set(re.findall(r"\baiohttp\.(\w+)", found.pop("follow.py"))) == {"ClientError"}
    assert list(found) == ["downloads.py"]


SECRETS = {
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a key of AWS": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a token of GitHub": r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{22,})",
    "a token of Slack": r"\bxox[abprs]-[A-Za-z0-9-]{10,}",
    "a key of Google": r"\bAIza[0-9A-Za-z_-]{35}\b",
    "a token of Hugging Face or OpenAI": r"\b(?:hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{32,})",
    "a JSON web token": r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.",
    "a password in an address": r"://[^/\s:@'\"{}$<*]+:(?!hunter2|word@|pass/word@|secret@|\*)[^/\s@'\"{}$<*]{4,}@",
    "a password": r"(?i)\b[\w.-]*(?:password|passwd|secret_?(?:access_?)?key|auth_token)\b[\"']?[ \t]*[:=][ \t]*[\"']?"
    r"(?=[\w+/=.!#%^&~-]*\d)(?=[\w+/=.!#%^&~-]*[A-Za-z])(?!hunter2)[\w+/=.!#%^&~-]{12,}",
}


def secrets(text: str) -> list[str]:
    return [what for what, pattern in SECRETS.items() if re.search(pattern, text)]


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN OPENSSH " + "PRIVATE KEY-----",
        "aws_access_key_id = AKIA" + "ABCDEFGHIJKLMNOP",
        "ghp_" + 36 * "a",
        "xoxb-" + 12 * "1",
        "AIza" + 35 * "b",
        "hf_" + 34 * "c",
        "eyJhbGciOiJI" + "UzI1NiJ9.eyJzdWIiOiIx" + "MjM0NTY3.x",
        "postgresql://mlflow:" + "s3cr3tw0rd@host/runs",
        "POSTGRES_PASSWORD=" + "correct9horse9battery",
        'auth_token: "' + '0123456789abcdef"',
    ],
)
def test_each_kind_of_secret_is_seen(text: str) -> None:
    assert secrets(text)


@pytest.mark.parametrize(
    "text",
    [
        "${POSTGRES_PASSWORD:?set it}",
        "https://host:5000/a@b",
        "password=***",
        "RAY_AUTH_TOKEN: ${RAY_AUTH_TOKEN}",
        "s3://a/b",
    ],
)
def test_what_is_none_is_left_in_peace(text: str) -> None:
    assert not secrets(text)


def test_the_project_holds_no_secret() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / name for name in listed.split("\0") if name]
    assert len(files) > 100
    texts = {path: path.read_bytes().decode(errors="replace") for path in files if path.is_file()}
    assert not {str(path.relative_to(ROOT)): found for path, text in texts.items() if (found := secrets(text))}
    assert not [path for path in files if path.name == ".env" or path.suffix in (".pem", ".key", ".p12")]
