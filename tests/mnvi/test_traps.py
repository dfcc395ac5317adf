"""Mistakes that used to pass in silence, or died with a message about something else: each says what to write."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Dirichlet, Normal, OneHotCategorical

import mnvi

OUT = mnvi.Gaussian(torch.zeros(4, 3), torch.ones(4, 3))
LABELS = torch.tensor([0, 1, 2, 0])
LIKELIHOOD = mnvi.CategoricalLikelihood()
ELBO = mnvi.ELBO(LIKELIHOOD, num_data=10)


def single(*shape: int) -> mnvi.Gaussian:
    return mnvi.Gaussian(torch.zeros(shape), torch.ones(shape))


TRAPS: dict[str, tuple[type[Exception], str, Callable[[], object]]] = {
    "no kl": (TypeError, "missing 1 required positional argument: 'kl'", lambda: ELBO(OUT, LABELS)),  # type: ignore[call-arg]
    "kl of None": (TypeError, "or 0 for a network without posterior", lambda: ELBO(OUT, LABELS, None)),  # type: ignore[arg-type]
    "model as kl": (
        TypeError,
        "ELBO: kl is a Linear; pass mnvi.kl_divergence(net)",
        lambda: ELBO(OUT, LABELS, nn.Linear(1, 1)),  # type: ignore[arg-type]
    ),
    "output as kl": (
        TypeError,
        "ELBO: kl is a Gaussian, which is what a network returns; call elbo(out, y, kl)",
        lambda: ELBO(torch.tensor(0.0), LABELS, OUT),  # type: ignore[arg-type]
    ),
    "kl_divergence, not called, as kl": (
        TypeError,
        "ELBO: kl is a function; call it: mnvi.kl_divergence(net)",
        lambda: ELBO(OUT, LABELS, mnvi.kl_divergence),  # type: ignore[arg-type]
    ),
    "labels as kl": (ValueError, "ELBO: kl has shape (4,)", lambda: ELBO(OUT, torch.tensor(1.0), LABELS)),
    "negative kl": (ValueError, "ELBO: kl=-1.0 must be a finite number >= 0", lambda: ELBO(OUT, LABELS, -1.0)),
    "swapped output and labels": (
        TypeError,
        "ELBO: y is a Gaussian, which is what a network returns; call elbo(out, y, kl)",
        lambda: ELBO(LABELS, OUT, 0),  # type: ignore[arg-type]
    ),
    "swapped logits and labels": (
        TypeError,
        "out is torch.int64, but a network's output is floating point; pass the output before the targets",
        lambda: ELBO(LABELS, torch.zeros(4, 3), 0),
    ),
    "swapped heads and targets": (
        ValueError,
        "If these are the targets, pass the output first",
        lambda: mnvi.ELBO(mnvi.GaussianLikelihood(), 10)(torch.zeros(5), torch.zeros(5, 2), 0),
    ),
    "schedule without an epoch": (
        ValueError,
        "depends on the epoch; call elbo(out, y, kl, epoch)",
        lambda: mnvi.ELBO(LIKELIHOOD, 10, mnvi.StepSchedule({0: 1.0}))(OUT, LABELS, 0),
    ),
    "num_data as a tensor": (
        ValueError,
        "ELBO: num_data=tensor(10) must be a finite number >= 1; take the number out of the tensor with .item()",
        lambda: mnvi.ELBO(LIKELIHOOD, num_data=torch.tensor(10)),  # type: ignore[arg-type]
    ),
    "one-hot labels": (ValueError, "look one-hot", lambda: ELBO(OUT, torch.eye(3)[LABELS], 0)),
    "one-hot integers": (ValueError, "pass y.argmax(-1)", lambda: ELBO(OUT, torch.eye(3).long()[LABELS], 0)),
    "one logit": (ValueError, "let the network return two logits", lambda: ELBO(single(4, 1), LABELS, 0)),
    "one logit, labels like it": (ValueError, "two logits", lambda: ELBO(single(4, 1), torch.zeros(4, 1), 0)),
    "one logit without a dimension": (ValueError, "two logits", lambda: ELBO(single(4), torch.zeros(4).long(), 0)),
    "one logit without a dimension, floating labels": (
        TypeError,
        "got torch.float32; for two classes let the network return two logits, or use BernoulliLikelihood",
        lambda: ELBO(single(4), torch.tensor([0.0, 1.0, 0.0, 0.0]), 0),
    ),
    "probabilities as labels": (
        ValueError,
        "look like probabilities, which it does not take; expected class indices of shape (4,), and "
        "CategoricalLikelihood(label_smoothing=...) smooths them",
        lambda: ELBO(OUT, torch.full((4, 3), 1 / 3), 0),
    ),
    "an image of one pixel for each class": (
        ValueError,
        "the classes seem to be in dimension 1: pass out.flatten(1)",
        lambda: ELBO(single(4, 3, 1, 1), LABELS, 0),
    ),
    "an image of one column for each class": (
        ValueError,
        "the classes seem to be in dimension 1: write CategoricalLikelihood(class_dim=1)",
        lambda: ELBO(single(4, 3, 5, 1), torch.zeros(4, 5, 1).long(), 0),
    ),
    "prediction from one logit": (ValueError, "a single class", lambda: LIKELIHOOD.predictive(single(4, 1))),
    "image-shaped logits": (
        ValueError,
        "with the classes in dimension 1; they must come last: pass out.movedim(1, -1)",
        lambda: ELBO(single(2, 3, 5, 5), torch.zeros(2, 5, 5).long(), 0),
    ),
    "image-shaped one-hot labels": (
        ValueError,
        "look one-hot; expected class indices of shape (2, 5): pass y.argmax(1)",
        lambda: mnvi.ELBO(mnvi.CategoricalLikelihood(class_dim=1), 10)(
            single(2, 3, 5), torch.eye(3)[torch.zeros(2, 5).long()].movedim(-1, 1), 0
        ),
    ),
    "two logits for a coin": (
        ValueError,
        "two logits for one target are for CategoricalLikelihood",
        lambda: mnvi.ELBO(mnvi.BernoulliLikelihood(), 10)(single(4, 2), torch.zeros(4), 0),
    ),
    "standard deviation of classes": (
        TypeError,
        "classes have no standard deviation; use uncertainty(out)",
        lambda: LIKELIHOOD.standard_deviations(OUT),
    ),
    "torch.tensor(gaussian)": (TypeError, "torch.tensor cannot take a Gaussian, and", lambda: torch.tensor(OUT)),
    "Normal(gaussian, 1)": (
        TypeError,
        "takes tensors, not a Gaussian; Normal(x.mean, x.std)",
        lambda: Normal(OUT, 1.0, validate_args=True),  # type: ignore[arg-type]
    ),
    "Normal(gaussian, 1) without validation, which the compiler switches off": (
        TypeError,
        "takes tensors, not a Gaussian; Normal(x.mean, x.std)",
        lambda: Normal(OUT, 1.0, validate_args=False),  # type: ignore[arg-type]
    ),
    "mean of Dirichlet(gaussian) without validation": (
        TypeError,
        "takes tensors, not a Gaussian",
        lambda: Dirichlet(OUT, validate_args=False).mean,  # type: ignore[arg-type]
    ),
    **{
        f"{distribution.__name__}({name}=gaussian, {validated=})": (
            TypeError,
            "takes tensors, not a Gaussian; Normal(x.mean, x.std)",
            partial(distribution, **{name: OUT}, validate_args=validated),
        )
        for distribution in (Bernoulli, Categorical, OneHotCategorical)
        for name in ("logits", "probs")
        for validated in (True, False)
    },
}


@pytest.mark.parametrize("name", TRAPS)
def test_a_mistake_says_what_to_write_instead(name: str) -> None:
    kind, message, call = TRAPS[name]
    with pytest.raises(kind, match=re.escape(message)):
        call()


def test_a_kl_of_zero_is_allowed() -> None:
    terms = ELBO(OUT, LABELS, kl=0)
    assert terms.kl == 0


@pytest.mark.parametrize("missing", ["expected_log_prob", "predictive"])
def test_a_likelihood_without_its_methods_cannot_be_made(missing: str) -> None:
    methods = {name: lambda *_: None for name in ("expected_log_prob", "predictive") if name != missing}
    with pytest.raises(TypeError, match=f"abstract.*{missing}"):
        type("Unfinished", (mnvi.Likelihood,), methods)()


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("kl_divergence", mnvi.kl_divergence),
        ("optimize_for_inference", partial(mnvi.optimize_for_inference, compile=False)),
        ("export", partial(mnvi.export, path="never_written.pt2", example=torch.ones(1, 3))),
    ],
)
def test_weights_tied_after_conversion_are_noticed(name: str, call: Callable[[nn.Module], object]) -> None:
    net = mnvi.convert(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), mnvi.MultiplicativeNoise(1.0))
    net[1].weight = net[0].weight
    with pytest.raises(ValueError, match=rf"{name}: layers '0' and '1' share their weight, but each has its own rho"):
        call(net)


class Unfinished(mnvi.layers.BayesianLayer, nn.Linear):
    """A layer without geometry and in_units."""


@pytest.mark.parametrize("name", ["geometry", "in_units"])
def test_an_unfinished_layer_says_what_it_lacks(name: str) -> None:
    layer = Unfinished(3, 2, posterior=mnvi.MeanField(1.0))
    with pytest.raises(NotImplementedError, match=f"Unfinished must define the property {name}"):
        getattr(layer, name)


def gap(x: Tensor) -> Tensor:
    return x.mean((2, 3))


def scaled(x: Tensor) -> Tensor:
    return 3 * x


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mean((2, 3))


class WithHelper(Base):
    def forward(self, x: Tensor) -> Tensor:
        return OUT_OF_REACH.gap(self.layer(x))


class WithSuper(Base):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


def twice(x: Tensor) -> Tensor:
    return torch.mean(x, 1) + x[:, :2].mean(1)


OUT_OF_REACH = SimpleNamespace(gap=gap, twice=twice)  # functions called by their own name are rewritten


class WithBoth(Base):
    def forward(self, x: Tensor) -> Tensor:
        return OUT_OF_REACH.twice(self.layer(x))


class WithAnotherMistake(Base):
    def forward(self, x: Tensor) -> Tensor:
        return scaled(self.layer(x))(1)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (WithHelper, r"x.mean\(...\) of a Gaussian is not a method: write torch.mean\(x, ...\) \(.*, line \d+, in gap"),
        (WithBoth, r"x\[:, :2\].mean\(...\) of a Gaussian is not a method: write torch.mean\(x\[:, :2\], ...\)"),
        (WithSuper, r"write torch.mean\(.*test_traps.py, line \d+, in forward\)"),
    ],
)
def test_a_mean_call_out_of_reach_names_its_line(model: type[nn.Module], message: str) -> None:
    net = mnvi.convert(model(), mnvi.MultiplicativeNoise(1.0))
    with pytest.raises(TypeError, match=message):
        net(torch.ones(1, 1, 5, 5))


def test_a_part_that_is_called_alone_names_the_line_too() -> None:
    net = mnvi.convert(nn.Sequential(WithHelper()), mnvi.MultiplicativeNoise(1.0))
    with pytest.raises(TypeError, match=r"write torch.mean\(x, ...\) \(.*, line \d+, in gap"):
        net[0](torch.ones(1, 1, 5, 5))


def test_another_mistake_keeps_its_message() -> None:
    net = mnvi.convert(WithAnotherMistake(), mnvi.MultiplicativeNoise(1.0))
    with pytest.raises(TypeError, match="'Gaussian' object is not callable"):
        net(torch.ones(1, 1, 5, 5))


def test_the_hook_that_explains_lets_a_model_compile_as_one_graph() -> None:
    net = mnvi.convert(Base(), mnvi.MultiplicativeNoise(1.0))
    x = torch.ones(1, 1, 5, 5)
    out = torch.compile(net, fullgraph=True, backend="eager")(x)
    torch.testing.assert_close(out.var, net(x).var)
