import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Runs `code` in a fresh interpreter: what is already imported here would hide what an import does."""
    return subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True)


def test_models_datasets_and_transforms_are_importable_after_the_mend():
    result = run("import mnvi._torchvision, torchvision.models, torchvision.datasets, torchvision.transforms.v2")
    assert result.returncode == 0, result.stderr


def test_exposed_module_is_whole():
    # A first import that failed must leave no submodule behind that the package does not know.
    result = run(
        "import sys; from mnvi._torchvision import torchvision; assert torchvision is sys.modules['torchvision'];"
        "loaded = {name.split('.')[1] for name in sys.modules if name.startswith('torchvision.')};"
        "assert loaded <= set(dir(torchvision)), loaded - set(dir(torchvision))"
    )
    assert result.returncode == 0, result.stderr


def fake_torchvision(folder: Path, source: str) -> str:
    """Code that imports mnvi._torchvision with a module of this `source` in torchvision's place."""
    (folder / "torchvision.py").write_text(source)
    return f"import sys; sys.path.insert(0, {str(folder)!r}); import torch, mnvi._torchvision; "


SCHEMAS = "[s for s in torch._C._jit_get_all_schemas() if s.name.startswith('torchvision::')]"


def test_nothing_is_declared_when_the_import_works(tmp_path):
    result = run(fake_torchvision(tmp_path, "") + f"assert not {SCHEMAS}, {SCHEMAS}")
    assert result.returncode == 0, result.stderr


def test_both_operators_are_declared_when_the_import_asks_for_nms(tmp_path):
    source = "import torch\ntorch.library.register_fake('torchvision::nms', lambda dets, scores, iou_threshold: dets)"
    names = f"sorted(s.name for s in {SCHEMAS})"
    result = run(fake_torchvision(tmp_path, source) + f"assert {names} == ['torchvision::nms', 'torchvision::qnms']")
    assert result.returncode == 0, result.stderr


def test_other_failures_of_the_import_are_not_hidden(tmp_path):
    result = run(fake_torchvision(tmp_path, "raise RuntimeError('broken for another reason')"))
    assert result.stderr.rstrip().endswith("RuntimeError: broken for another reason")


def test_missing_torchvision_is_an_error_that_names_the_extra():
    result = run("import sys; sys.modules['torchvision'] = None; import mnvi._torchvision")
    assert result.stderr.rstrip().endswith(
        "ImportError: torchvision is not installed: run `pip install 'mnvi[vision]'`"
    )


def test_missing_dependency_of_torchvision_is_not_reported_as_missing_torchvision(tmp_path):
    result = run(fake_torchvision(tmp_path, "import no_such_module"))
    assert result.stderr.rstrip().endswith("ModuleNotFoundError: No module named 'no_such_module'")
