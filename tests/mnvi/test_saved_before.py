"""Files that version 0.1.0 wrote, before the modules moved."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path

import pytest
import torch

import mnvi

FILES = Path(__file__).parent / "saved_by_0_1_0"
MODELS = sorted(
    path.stem for path in FILES.glob("*.pt") if path.stem not in ("objective", "values", "samples", "likelihoods")
)


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_model_loads_and_answers_as_it_did(name: str) -> None:
    saved = torch.load(FILES / f"{name}.pt", weights_only=False)
    with torch.no_grad():
        out = saved["model"](saved["x"])
    torch.testing.assert_close(out.mean, saved["mean"])
    torch.testing.assert_close(out.var, saved["var"])


def test_the_models_are_all_there() -> None:
    assert len(MODELS) == 9


def test_an_objective_loads_and_gives_the_same_loss() -> None:
    saved = torch.load(FILES / "objective.pt", weights_only=False)
    torch.testing.assert_close(saved["model"](saved["x"], saved["y"], 0).loss, saved["loss"])


@pytest.mark.parametrize("name", ["gaussian", "homoscedastic", "categorical", "second_order"])
def test_a_likelihood_loads_and_gives_the_same_value(name: str) -> None:
    saved = torch.load(FILES / "likelihoods.pt", weights_only=False)[name]
    torch.manual_seed(1)  # of the logit samples
    value = saved["likelihood"].expected_log_prob(saved["out"], saved["y"])
    # The file comes from another machine, whose vector instructions round the last digit differently.
    torch.testing.assert_close(value, saved["value"], rtol=1e-6, atol=0)
    assert saved["likelihood"].predictive(saved["out"]).log_prob(saved["y"]).isfinite().all()


def test_an_uncertainty_loads() -> None:
    saved = torch.load(FILES / "likelihoods.pt", weights_only=False)["gaussian"]
    assert isinstance(saved["uncertainty"], mnvi.Uncertainty)
    assert all(map(torch.equal, saved["uncertainty"], saved["likelihood"].uncertainty(saved["out"])))


def test_values_load_without_trusting_the_file() -> None:
    gaussian, joint = torch.load(FILES / "values.pt", weights_only=True)
    assert isinstance(gaussian, mnvi.Gaussian) and torch.equal(gaussian.var, torch.ones(2))
    assert isinstance(joint, mnvi.JointGaussian) and torch.equal(joint.cov, torch.eye(2))


def test_samples_load() -> None:
    assert torch.load(FILES / "samples.pt", weights_only=False).shape == (3, 1)


def test_a_name_that_old_files_no_longer_find_says_what_to_do() -> None:
    module = __import__("mnvi.montecarlo", fromlist=["Ensemble"])
    assert module.Ensemble is mnvi.Ensemble
    with pytest.raises(
        ImportError,
        match=r"mnvi.montecarlo.Forgotten was moved or removed in mnvi 0\.2; .* save the model's state_dict",
    ):
        _ = module.Forgotten


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mnvi.parallel.DataParallel", "mnvi.parallel was removed .*DistributedDataParallel"),
        ("mnvi.optimizers.SGD", "mnvi.optimizers was removed .*use torch.optim"),
        ("mnvi.rules.linear._linear_map", "mnvi.rules.linear was removed"),
        ("mnvi.export._PlainOutputs", "mnvi.export._PlainOutputs was moved or removed"),
        ("mnvi.montecarlo.Forgotten", "mnvi.montecarlo.Forgotten was moved or removed"),
    ],
)
def test_an_unpickler_says_it_too(name: str, message: str) -> None:
    module, _, attribute = name.rpartition(".")
    old = f"c{module}\n{attribute}\n.".encode()  # a pickle of the class
    with pytest.raises(ImportError, match=rf"{message}.* save the model's state_dict"):
        pickle.loads(old)


def test_every_module_of_0_1_0_is_here_or_explained() -> None:
    modules = (FILES / "modules.txt").read_text().split()
    unexplained = []
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            if "was removed in version 0.2" not in str(error):
                unexplained.append(name)
    assert len(modules) > 60 and unexplained == []


def test_a_hook_of_a_folded_model_and_a_recipe_are_found() -> None:
    assert pickle.loads(b"cmnvi.folding\n_AsTraced\n.").__name__ == "_AsTraced"
    assert pickle.loads(b"cmnvi.recipe\nRecipe\n.") is mnvi.replicas.Recipe


def test_a_likelihood_saved_before_its_module_was_renamed_is_found() -> None:
    assert pickle.loads(b"cmnvi.likelihoods.gaussian\nGaussianLikelihood\n.") is mnvi.GaussianLikelihood


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("DataParallel", "DistributedDataParallel"), ("taylor", "'taylor'"), ("quadrature", "'quadrature'")],
)
def test_a_name_that_is_gone_says_what_to_write(name: str, remedy: str) -> None:
    with pytest.raises(AttributeError, match=f"mnvi.{name} was removed .*{remedy}"):
        getattr(mnvi, name)
    assert not hasattr(mnvi, name)


@pytest.mark.parametrize(
    ("statement", "remedy"),
    [
        ("from mnvi import taylor", "'taylor'"),
        ("from mnvi import DataParallel", "DistributedDataParallel"),
        ("from mnvi import optimizers", "torch.optim"),
        ("import mnvi.optimizers", "torch.optim"),
        ("from mnvi.vision import torchvision", "import torchvision itself"),
    ],
)
def test_an_import_of_what_is_gone_says_what_to_write(statement: str, remedy: str) -> None:
    with pytest.raises(ImportError, match=f"was removed .*{remedy}"):
        exec(statement, {})


def test_a_name_that_never_was_keeps_pythons_message() -> None:
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from mnvi import nonsense", {})
