"""What an exported file returns: moments, and with a likelihood the prediction that they mean, as plain tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.distributions import Distribution

from mnvi.likelihoods import CategoricalLikelihood, GaussianLikelihood, Likelihood
from mnvi.likelihoods._sampling import common_noise
from mnvi.moments._torch import distributions_are_checked
from mnvi.values.gaussian import Gaussian
from mnvi.values.samples import Samples

_SEED = 0


class PlainOutputs(nn.Module):
    """Returns only tensors, so that loading the file needs no class of this library.

    Args:
        model: returns a Gaussian, a tensor, or a dictionary of these.
        likelihood: adds the prediction that the output means.
        inputs: an example, to find the outputs' names.

    Attributes:
        names: of the tensors that it returns, in their order.
    """

    noise: Tensor | None

    def __init__(self, model: nn.Module, likelihood: Likelihood | None, inputs: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.model, self.likelihood = model, likelihood
        if likelihood is not None and not isinstance(likelihood, CategoricalLikelihood | GaussianLikelihood):
            raise TypeError(
                f"export: likelihood is a {type(likelihood).__name__}; expected a CategoricalLikelihood or a "
                "GaussianLikelihood"
            )
        out = model(*inputs)
        if likelihood is not None and isinstance(out, Mapping):
            raise TypeError("export: the model returns a dictionary, but a likelihood reads one output; leave it out")
        if likelihood is not None:
            self.register_buffer("noise", _noise(likelihood, out), persistent=False)
        self.names = list(self._named(out))

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        found = tuple(self._named(self.model(*inputs)).values())
        return found if len(found) > 1 else found[0]

    def _named(self, out: Any) -> dict[str, Tensor]:
        if isinstance(out, Mapping):
            if not out:
                raise TypeError(
                    "export: the model returns an empty dictionary; only Gaussians and tensors are exported"
                )
            return {f"{key}_{name}": value for key, one in out.items() for name, value in _moments(one).items()}
        found = _moments(out)
        if isinstance(self.likelihood, CategoricalLikelihood):
            found["probs"] = self._probs(out)
        elif self.likelihood is not None:
            with _unvalidated():
                predicted = self.likelihood.predictive(out)
            found["predicted_mean"], found["predicted_std"] = predicted.mean, predicted.stddev
        return found

    def _probs(self, out: Tensor | Gaussian) -> Tensor:
        assert isinstance(self.likelihood, CategoricalLikelihood)
        dim = self.likelihood.class_dim
        if isinstance(out, Tensor):
            return out.softmax(dim)
        if self.noise is None:
            with _unvalidated():
                probs: Tensor = self.likelihood.predictive(out).probs
            return probs
        samples = Samples(out.mean + out.std * self.noise)
        return samples.values.softmax(dim if dim < 0 else dim + 1).mean(0)


def _moments(out: Any) -> dict[str, Tensor]:
    if isinstance(out, Gaussian):
        return {"mean": out.mean, "variance": out.var}
    if isinstance(out, Tensor):
        return {"output": out}
    raise TypeError(
        f"export: the model returns {type(out).__name__}; only models that return a mnvi.Gaussian, a tensor or a "
        "dictionary of these can be exported"
    )


def _noise(likelihood: Likelihood, out: Any) -> Tensor | None:
    """Antithetic noise of the logits, the same for every example, [samples, 1, classes]; None if nothing is sampled."""
    if not isinstance(likelihood, CategoricalLikelihood) or likelihood.approximation != "sampling":
        return None
    if not isinstance(out, Gaussian):
        return None
    return common_noise(likelihood.num_samples, out.shape, likelihood.class_dim, _SEED).to(out.mean)


@contextmanager
def _unvalidated() -> Iterator[None]:
    """Without the checks of torch's distributions, which look at values and so cannot be traced."""
    before = distributions_are_checked()
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)
