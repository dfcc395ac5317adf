"""mnvi.fit: training, validation, early stopping, checkpoints."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import mnvi

ROOT = Path(mnvi.__file__).parents[1]
quiet = functools.partial(mnvi.fit, progress=False)


def regression(count: int = 120) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 3, generator=generator)
    return x, x[:, 0] + 0.3 * torch.randn(count, generator=generator)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return mnvi.convert(mnvi.models.mlp(3, hidden=8), mnvi.MultiplicativeNoise(prior_variance=1.0))


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
    return (x[:1200], y[:1200]), (x[1200:], y[1200:])


def digit_network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 10))


@pytest.mark.slow
def test_the_defaults_are_at_least_as_accurate_as_the_plain_network_on_digits() -> None:
    train, test = digits()
    errors = []
    for convert in (lambda net: net, lambda net: mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1.0))):
        runs = [quiet(convert(digit_network(seed)), train) for seed in range(2)]
        errors.append(sum(mnvi.evaluate(fitted, test)["error"] for fitted in runs) / 2)
    plain, bayesian = errors
    assert bayesian <= plain < 0.04


def test_a_loader_and_a_pair_of_tensors_both_train() -> None:
    x, y = regression()
    loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
    for data in ((x, y), loader, [(x[:60], y[:60]), (x[60:], y[60:])]):
        fitted = quiet(network(), data, epochs=10)
        assert fitted.history[-1]["loss"] < fitted.history[0]["loss"]


def test_numpy_arrays_in_double_precision_train() -> None:
    x, y = regression()
    fitted = quiet(network(), (x.double().numpy(), y.double().numpy()), epochs=2)
    assert mnvi.predict(fitted, x.double().numpy()).mean is not None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("targets", "expected"),
    [(torch.zeros(4, dtype=torch.long), mnvi.CategoricalLikelihood), (torch.zeros(4), mnvi.GaussianLikelihood)],
)
def test_the_targets_choose_the_likelihood(targets: Tensor, expected: type) -> None:
    assert type(quiet(network(), (torch.zeros(4, 3), targets), epochs=1).likelihood) is expected


def test_the_kl_is_divided_by_the_number_of_targets() -> None:
    x, y = regression(50)
    fitted = quiet(network(), (x, y), epochs=1, learning_rate=1e-9, kappa=0.5)
    row = fitted.history[0]
    assert row["loss"] == pytest.approx(row["nll"] + 0.5 / 50 * row["kl"])


@pytest.mark.parametrize("method", ["deterministic", "mc_dropout", "ensemble", "mfvi"])
def test_every_method_can_be_trained(method: str) -> None:
    net = mnvi.methods.build(method, lambda: mnvi.models.mlp(3, dropout=0.1))
    fitted = quiet(net, regression(), validation=regression(40), epochs=2)
    assert set(fitted.history[0]) >= {"validation_nll", "validation_rmse", "validation_coverage"}


def test_the_network_ends_as_in_its_best_epoch() -> None:
    seen: list[float] = []
    held_out = regression(40)
    settings: dict[str, Any] = {"epochs": 30, "learning_rate": 0.3, "validation": held_out}
    fitted = quiet(network(), regression(20), callback=lambda row: seen.append(row["validation_nll"]), **settings)
    assert fitted.best_epoch == seen.index(min(seen)) + 1 < 30
    assert mnvi.evaluate(fitted, held_out)["nll"] == pytest.approx(min(seen), rel=1e-5)


def test_it_stops_if_the_validation_does_not_improve() -> None:
    fitted = quiet(network(), regression(20), validation=regression(40), epochs=60, learning_rate=0.3, patience=3)
    assert fitted.stopped_early and len(fitted.history) == fitted.best_epoch + 3 < 60


class Stop(BaseException):
    """Stands for whatever ends a process."""


def stop_after(epoch: int) -> Any:
    def callback(row: dict[str, float]) -> None:
        if row["epoch"] == epoch:
            raise Stop

    return callback


@pytest.mark.parametrize("batches", ["pair", "loader"])
def test_a_training_that_was_stopped_ends_as_if_nothing_had_happened(tmp_path: Path, batches: str) -> None:
    def data() -> Any:
        pair = regression()
        if batches == "pair":
            return pair
        return DataLoader(TensorDataset(*pair), batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(3))

    settings: dict[str, Any] = {"epochs": 6, "validation": regression(40), "learning_rate": 0.1}
    whole = quiet(network(), data(), **settings)
    with pytest.raises(Stop):
        quiet(network(), data(), checkpoint=tmp_path / "state.pt", callback=stop_after(4), **settings)
    torch.manual_seed(99)
    resumed = quiet(network(7), data(), checkpoint=tmp_path / "state.pt", **settings)
    assert resumed.history == whole.history and resumed.best_epoch == whole.best_epoch
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value)


SCRIPT = """
import sys, torch, mnvi
torch.manual_seed(0)
net = mnvi.convert(mnvi.models.mlp(3, hidden=8), mnvi.MultiplicativeNoise(prior_variance=1.0))
x = torch.randn(200, 3)
def tell(row):
    print(row["epoch"], flush=True)
fitted = mnvi.fit(net, (x, x[:, 0]), epochs=int(sys.argv[1]), checkpoint="state.pt", callback=tell)
"""


@pytest.mark.slow
def test_ctrl_c_leaves_a_state_from_which_the_same_call_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(
        [*command, "100000"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    for _ in range(3):
        running.stdout.readline()
    running.send_signal(signal.SIGINT)
    printed, said = running.communicate(timeout=60)
    last = int(float((["3", *printed.split()])[-1]))
    assert running.returncode != 0 and "the same call resumes there, from state.pt" in said
    done = torch.load(tmp_path / "state.pt", weights_only=True)["epoch"]
    assert last - 1 <= done <= last


def test_a_finished_training_is_read_from_its_checkpoint_and_can_be_prolonged(tmp_path: Path) -> None:
    path, epochs = tmp_path / "state.pt", []
    settings: dict[str, Any] = {"checkpoint": path, "callback": lambda row: epochs.append(row["epoch"])}
    first = quiet(network(), regression(), epochs=3, **settings)
    again = quiet(network(5), regression(), epochs=3, **settings)
    assert again.history == first.history and epochs == [1, 2, 3]
    quiet(network(5), regression(), epochs=4, **settings)
    assert epochs == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("change", "named"),
    [({"learning_rate": 0.5}, "learning_rate=0.01"), ({"epochs": 1}, "epochs=2"), ({"kappa": 1.0}, "kappa=0.03")],
)
def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    settings: dict[str, Any] = {"epochs": 2, "checkpoint": tmp_path / "state.pt"}
    quiet(network(), regression(), **settings)
    with pytest.raises(ValueError, match=f"of a training with {named}"):
        quiet(network(), regression(), **{**settings, **change})


def test_an_equal_schedule_resumes_and_another_one_is_refused(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 2, "checkpoint": tmp_path / "state.pt"}
    quiet(network(), regression(), kappa=lambda epoch: 0.1 * (epoch + 1), **settings)
    quiet(network(), regression(), kappa=lambda epoch: 0.1 * (epoch + 1), **settings)
    with pytest.raises(ValueError, match="of a training with kappa="):
        quiet(network(), regression(), kappa=lambda epoch: 0.2 * (epoch + 1), **settings)


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    quiet(network(), regression(), epochs=1, checkpoint=tmp_path / "state.pt")
    with pytest.raises(ValueError, match="of a training with parameters="):
        quiet(mnvi.models.mlp(3), regression(), epochs=1, checkpoint=tmp_path / "state.pt")


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match="is not a checkpoint of mnvi"):
        quiet(network(), regression(), checkpoint=tmp_path / "notes.txt")


@pytest.mark.parametrize("amp", [True, torch.bfloat16])
def test_mixed_precision_trains(amp: Any) -> None:
    fitted = quiet(network(), regression(), epochs=10, amp=amp)
    assert fitted.history[-1]["loss"] < fitted.history[0]["loss"]
    assert next(fitted.model.parameters()).dtype == torch.float32


def test_gradients_are_clipped_to_the_norm() -> None:
    net = network()
    before = [parameter.detach().clone() for parameter in net.parameters()]
    quiet(
        net,
        (torch.ones(4, 3), torch.full((4,), 100.0)),
        epochs=1,
        optimizer=torch.optim.SGD,
        learning_rate=1.0,
        clip=0.01,
    )
    moved = torch.cat([(new.detach() - old).flatten() for new, old in zip(net.parameters(), before, strict=True)])
    assert float(moved.norm()) == pytest.approx(0.01, rel=1e-3)


def test_the_learning_rate_falls_to_zero_along_half_a_cosine() -> None:
    rates = []

    class Noted(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    quiet(network(), regression(), epochs=4, batch_size=60, optimizer=Noted, learning_rate=0.08)
    expected = 0.04 * (1 + torch.cos(torch.arange(8, dtype=torch.float64) / 8 * torch.pi))
    assert rates == pytest.approx(expected.tolist())


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(*regression(64), strict=True)


def test_a_stream_needs_its_length() -> None:
    loader = DataLoader(Stream(), batch_size=16)
    with pytest.raises(ValueError, match="does not say how many examples it has; give num_data"):
        quiet(network(), loader, epochs=1)
    assert len(quiet(network(), loader, epochs=2, num_data=64).history) == 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((torch.zeros(4, 3), torch.zeros(5)), "expected one target for each input"),
        (torch.zeros(4, 3), "expected a pair"),
        ([], "train is empty"),
        (iter([(torch.zeros(4, 3), torch.zeros(4))]), "can be read only once"),
        ([torch.zeros(4, 3)], "expected a pair of inputs and targets"),
    ],
)
def test_data_of_another_kind_are_refused(data: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        quiet(network(), data, epochs=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "fit: epochs=0"),
        ({"patience": 3}, "needs validation data"),
        ({"amp": torch.float32}, "must be True, False"),
        ({"learning_rate": -1.0}, "fit: learning_rate=-1.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quiet(network(), regression(), **settings)


def test_a_finished_optimizer_is_refused() -> None:
    net = network()
    with pytest.raises(TypeError, match="give its class"):
        quiet(net, regression(), optimizer=torch.optim.SGD(net.parameters(), lr=1.0))


def test_a_loss_that_is_not_finite_is_reported() -> None:
    with pytest.raises(FloatingPointError, match="the loss became nan in epoch 1; scale inputs"):
        quiet(network(), (torch.full((4, 3), torch.nan), torch.zeros(4)), epochs=2)
