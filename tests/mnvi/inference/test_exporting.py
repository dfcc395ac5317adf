import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from networks import MODELS, POSTERIORS, trained
from torch import nn

import mnvi

RTOL = 2e-6  # of the largest entry; the runtime sums in another order
CASES = [
    *((name, posterior) for name in MODELS for posterior in ("multiplicative", "mean field")),
    ("lenet", "shared"),
    ("mlp", "shared"),
]
LONG = {("resnet18", "mean field"), ("resnet18 imagenet", "multiplicative")}  # the other two have the same layers


def small(posterior: str = "multiplicative") -> nn.Module:
    return trained(mnvi.models.mlp(3, hidden=4), POSTERIORS[posterior], (3,))


def run_onnx(path: Path, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    feed = {value.name: x.numpy() for value, x in zip(session.get_inputs(), inputs, strict=True)}
    return dict(zip(names, map(torch.from_numpy, session.run(None, feed)), strict=True))


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=RTOL * expected.abs().max().item())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "posterior"), [pytest.param(*case, marks=[pytest.mark.soak] if case in LONG else []) for case in CASES]
)
def test_onnx_runtime_gives_the_same_moments_for_other_batches(name, posterior, tmp_path):
    factory, shape = MODELS[name]
    model = trained(factory(), POSTERIORS[posterior], shape)
    mnvi.export(model, tmp_path / "model.onnx", torch.randn(2, *shape))
    for batch in (1, 5):
        x = torch.randn(batch, *shape)
        with torch.no_grad():
            expected = model(x)
        actual = run_onnx(tmp_path / "model.onnx", x)
        assert list(actual) == ["mean", "variance"]
        assert_close(actual["mean"], expected.mean)
        assert_close(actual["variance"], expected.var)
        assert (actual["variance"] >= 0).all()


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_optimised_model_exports_with_the_same_moments(posterior, tmp_path):
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2))
    model = trained(net, POSTERIORS[posterior], (2, 5, 5))
    fast = mnvi.optimize_for_inference(model)
    compiled = fast._compiled_call_impl
    mnvi.export(fast, tmp_path / "model.onnx", torch.randn(1, 2, 5, 5))
    assert compiled is not None and fast._compiled_call_impl is compiled
    x = torch.randn(4, 2, 5, 5)
    actual = run_onnx(tmp_path / "model.onnx", x)
    assert_close(actual["mean"], model(x).mean.detach())
    assert_close(actual["variance"], model(x).var.detach())


def test_relu_in_onnx_is_right_to_float_error_of_its_scale(tmp_path):
    class Rectifier(nn.Module):
        def forward(self, mean, var):
            return torch.relu(mnvi.Gaussian.trusted(mean, var))

    ratio, sigma = torch.meshgrid(torch.linspace(-50, 50, 2001), torch.tensor([1e-3, 1.0, 1e3]), indexing="ij")
    mean, var = ratio * sigma, sigma.square()
    mnvi.export(Rectifier(), tmp_path / "relu.onnx", (mean, var))
    actual = run_onnx(tmp_path / "relu.onnx", mean, var)
    exact = torch.relu(mnvi.Gaussian(mean.double(), var.double()))
    scale = torch.maximum(sigma, exact.mean)  # one part in 10⁷ of the mean is float32's own limit
    assert ((actual["mean"] - exact.mean).abs() / scale).max() < 5e-7
    assert ((actual["variance"] - exact.var).abs() / var).max() < 1e-6
    assert (actual["variance"] >= 0).all()


RUN_WITHOUT_MNVI = """
import sys, torch
x = torch.load(sys.argv[2])
outputs = torch.export.load(sys.argv[1]).module()(x)
assert not any(name.partition(".")[0] == "mnvi" for name in sys.modules)
torch.save(outputs, sys.argv[3])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "posterior"), [("lenet", "multiplicative"), ("mlp", "mean field")])
def test_pt2_runs_without_this_library(name, posterior, tmp_path):
    factory, shape = MODELS[name]
    model = trained(factory(), POSTERIORS[posterior], shape)
    mnvi.export(model, tmp_path / "model.pt2", torch.randn(1, *shape))
    x = torch.randn(3, *shape)
    torch.save(x, tmp_path / "x.pt")
    files = [str(tmp_path / file) for file in ("model.pt2", "x.pt", "out.pt")]
    subprocess.run([sys.executable, "-c", RUN_WITHOUT_MNVI, *files], cwd=tmp_path, check=True)
    mean, variance = torch.load(tmp_path / "out.pt")
    assert_close(mean.detach(), model(x).mean.detach())
    assert_close(variance.detach(), model(x).var.detach())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all_cnn", "resnet18 imagenet"])
def test_pt2_of_a_large_network_takes_a_batch_of_one(name, tmp_path):
    factory, shape = MODELS[name]
    model = trained(factory(), POSTERIORS["multiplicative"], shape)
    mnvi.export(model, tmp_path / "model.pt2", torch.randn(3, *shape))
    x = torch.randn(1, *shape)
    with torch.no_grad():
        mean, variance = torch.export.load(tmp_path / "model.pt2").module()(x)
        assert_close(mean, model(x).mean)
        assert_close(variance, model(x).var)


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_deterministic_model_has_one_output(suffix, tmp_path):
    model = mnvi.models.mlp(3, hidden=4).eval()
    path = tmp_path / f"model{suffix}"
    mnvi.export(model, path, torch.randn(1, 3))
    x = torch.randn(5, 3)
    if suffix == ".onnx":
        outputs = run_onnx(path, x)
        assert list(outputs) == ["output"]
        out = outputs["output"]
    else:
        out = torch.export.load(path).module()(x).detach()
    assert_close(out, model(x).detach())


def test_several_inputs_share_the_batch(tmp_path):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 3), nn.Linear(4, 3)

        def forward(self, x, y):
            return self.a(x) + self.b(y)

    model = mnvi.convert(Sum(), POSTERIORS["multiplicative"])
    mnvi.export(model, tmp_path / "model.onnx", (torch.randn(1, 2), torch.randn(1, 4)))
    x, y = torch.randn(6, 2), torch.randn(6, 4)
    assert_close(run_onnx(tmp_path / "model.onnx", x, y)["variance"], model(x, y).var.detach())


def test_modules_keep_their_modes_and_the_export_is_in_evaluation_mode(tmp_path):
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model = trained(net, POSTERIORS["multiplicative"], (3,)).train()
    model[2].eval()
    modes = [module.training for module in model.modules()]
    mnvi.export(model, tmp_path / "model.pt2", torch.randn(2, 3))
    assert [module.training for module in model.modules()] == modes
    x = torch.randn(4, 3)
    mean, _ = torch.export.load(tmp_path / "model.pt2").module()(x)
    assert_close(mean.detach(), model.eval()(x).mean.detach())


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_nothing_is_printed_and_nothing_is_left_beside_the_file(suffix, tmp_path, capfd):
    path = tmp_path / f"model{suffix}"
    mnvi.export(small(), path, torch.randn(1, 3))
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert capfd.readouterr().out == ""


def test_file_has_the_permissions_of_any_other(tmp_path):
    (tmp_path / "other").touch()
    mnvi.export(small(), str(tmp_path / "model.pt2"), torch.randn(1, 3))
    assert (tmp_path / "model.pt2").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_failure_leaves_the_former_file_and_the_mode(tmp_path, monkeypatch):
    path = tmp_path / "model.pt2"
    path.write_text("the former")

    def fail(program, file):
        Path(file).write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(torch.export, "save", fail)
    model = small().train()
    with pytest.raises(OSError, match="disk full"):
        mnvi.export(model, path, torch.randn(1, 3))
    assert path.read_text() == "the former" and os.listdir(tmp_path) == ["model.pt2"]
    assert model.training


def test_onnx_file_that_does_not_pass_the_check_gets_no_name(tmp_path, monkeypatch):
    import onnx

    def refuse(*args, **kwargs):
        raise onnx.checker.ValidationError("bad graph")

    monkeypatch.setattr(onnx.checker, "check_model", refuse)
    with pytest.raises(onnx.checker.ValidationError, match="bad graph"):
        mnvi.export(small(), tmp_path / "model.onnx", torch.randn(1, 3))
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["model", "model.pt", "model.ONNX"])
def test_other_suffix_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.onnx or \.pt2"):
        mnvi.export(small(), tmp_path / name, torch.randn(1, 3))


def test_missing_folder_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        mnvi.export(small(), tmp_path / "absent" / "model.pt2", torch.randn(1, 3))


@pytest.mark.parametrize(
    ("example", "error"),
    [
        ([[1.0, 2.0, 3.0]], TypeError),
        ((), TypeError),
        (torch.tensor(1.0), ValueError),
        (torch.ones(0, 3), ValueError),
        ((torch.ones(1, 3), torch.ones(2, 3)), ValueError),
    ],
)
def test_example_that_is_no_batch_of_inputs_is_refused(example, error, tmp_path):
    with pytest.raises(error, match="example"):
        mnvi.export(small(), tmp_path / "model.pt2", example)


def test_what_is_not_a_module_is_refused(tmp_path):
    with pytest.raises(TypeError, match="Module, got function"):
        mnvi.export(lambda x: x, tmp_path / "model.pt2", torch.randn(1, 3))


def test_model_that_returns_samples_is_refused(tmp_path):
    model = mnvi.mc_dropout(mnvi.models.mlp(3, dropout=0.1))
    with pytest.raises(TypeError, match="returns Samples"):
        mnvi.export(model, tmp_path / "model.pt2", torch.randn(1, 3))


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_missing_package_names_the_extra(package, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, package, raising=False)

    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name == package:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    with pytest.raises(ImportError, match=rf"{package} is not installed: run `pip install 'mnvi\[export\]'`"):
        mnvi.export(small(), tmp_path / "model.onnx", torch.randn(1, 3))
