"""Bayesian networks as estimators of scikit-learn, for tables; needs ``pip install 'mnvi[sklearn]'``.

>>> from sklearn.datasets import load_diabetes
>>> from mnvi.sklearn import BayesianRegressor
>>> X, y = load_diabetes(return_X_y=True)
>>> model = BayesianRegressor(random_state=0).fit(X[:342], y[:342])
>>> mean, std = model.predict(X[342:], return_std=True)
>>> mean.shape, std.shape
((100,), (100,))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

try:
    import numpy as np
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(f"mnvi.sklearn needs scikit-learn 1.6 or newer ({error}): pip install 'mnvi[sklearn]'") from error

from mnvi.conversion.converting import convert
from mnvi.likelihoods import CategoricalLikelihood, GaussianLikelihood, Likelihood
from mnvi.methods.montecarlo import seeded
from mnvi.models import mlp
from mnvi.posteriors import MultiplicativeNoise
from mnvi.training import Prediction, fit, predict

__all__ = ["BayesianClassifier", "BayesianRegressor"]

_SMALLEST_BATCH, _LARGEST_BATCH = 32, 256
_BATCHES = 16  # in an epoch, as long as a batch is neither too small nor too large


class _BayesianNetwork(BaseEstimator):
    """What both estimators share: a multilayer perceptron with multiplicative noise on standardised inputs."""

    def __init__(
        self,
        hidden: int | Sequence[int] = 50,
        *,
        epochs: int = 200,
        learning_rate: float = 1e-2,
        kappa: float = 0.2,
        prior_variance: float = 0.1,
        init_rho: float = -3.0,
        batch_size: int | None = None,
        random_state: Any = None,
        device: str | None = None,
    ) -> None:
        self.hidden = hidden
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.kappa = kappa
        self.prior_variance = prior_variance
        self.init_rho = init_rho
        self.batch_size = batch_size
        self.random_state = random_state
        self.device = device

    def predict_uncertainty(self, X: Any) -> Prediction:
        """The whole :class:`mnvi.Prediction`, with total, aleatoric and epistemic uncertainty.

        Args:
            X: inputs, [examples, features].
        """
        check_is_fitted(self)
        x = self.scaler_.transform(validate_data(self, X, dtype=np.float64, reset=False))
        return predict(self.network_, x, likelihood=self.likelihood_)

    def _train(self, X: Any, targets: Tensor, outputs: int, likelihood: Likelihood) -> None:
        """Standardise the inputs and train in float32; the network then predicts in float64.

        In float64 a prediction does not change with the size of the batch that it is made in.
        """
        self.scaler_ = StandardScaler().fit(X)
        x = torch.as_tensor(self.scaler_.transform(X), dtype=torch.float32)
        batch = self.batch_size
        if batch is None:
            batch = min(max(len(x) // _BATCHES, _SMALLEST_BATCH), _LARGEST_BATCH)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with seeded(seed, torch.device(self.device or "cpu")):
            hidden = self.hidden if isinstance(self.hidden, int) else tuple(self.hidden)
            network = convert(
                mlp(self.n_features_in_, hidden, outputs), MultiplicativeNoise(self.prior_variance, self.init_rho)
            )
            fitted = fit(
                network,
                (x, targets),
                likelihood=likelihood,
                epochs=self.epochs,
                learning_rate=self.learning_rate,
                kappa=self.kappa,
                batch_size=batch,
                device=self.device,
                progress=False,
            )
        self.network_ = network.cpu().double()
        self.likelihood_ = likelihood.cpu().double()
        self.loss_curve_ = [row["loss"] for row in fitted.history]


class BayesianRegressor(RegressorMixin, _BayesianNetwork):
    r"""Regression with a standard deviation for every prediction.

    A multilayer perceptron with multiplicative noise predicts mean and noise level of the target,
    :math:`y \sim \mathcal N(\mu(x), e^{c(x)})`; what it does not know of both comes from its posterior. Inputs and
    targets are standardised inside, and predictions converted back.

    Args:
        hidden: units of the hidden layer, or a sequence with the units of each.
        epochs: passes over the data.
        learning_rate: of Adam at the start; it falls to 0 along half a cosine.
        kappa: weight of the KL.
        prior_variance: of the weights.
        init_rho: noise at the start, :math:`\alpha = \log(1 + e^\rho)`.
        batch_size: None for a sixteenth of the data, between 32 and 256.
        random_state: seed of initial weights and order of the data, or a generator of numpy's.
        device: where to train; predictions are made on the CPU.

    Attributes:
        network_: the trained network, for standardised inputs and targets.
        likelihood_: what its output means.
        scaler_: standardises the inputs.
        target_mean_, target_scale_: mean and standard deviation of the targets.
        loss_curve_: the loss of every epoch.

    Example:
        >>> import numpy as np
        >>> from mnvi.sklearn import BayesianRegressor
        >>> X = np.random.default_rng(0).normal(size=(200, 3))
        >>> model = BayesianRegressor(random_state=0).fit(X, 1000 * X[:, 0])
        >>> bool(model.score(X, 1000 * X[:, 0]) > 0.9)
        True
        >>> lower, upper = model.predict_interval(X[:5], level=0.9)
    """

    def fit(self, X: Any, y: Any) -> BayesianRegressor:
        """Train on a table.

        Args:
            X: inputs, [examples, features].
            y: numbers, [examples].
        """
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        self.target_mean_, self.target_scale_ = float(y.mean()), float(y.std()) or 1.0
        targets = torch.as_tensor((y - self.target_mean_) / self.target_scale_, dtype=torch.float32)
        self._train(X, targets, 2, GaussianLikelihood())
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Means of the targets, and their standard deviations if asked for.

        Args:
            X: inputs, [examples, features].
            return_std: whether to return standard deviations, too.
        """
        prediction = self.predict_uncertainty(X)
        assert prediction.mean is not None
        mean = prediction.mean.numpy()
        return (mean, prediction.total.numpy()) if return_std else mean

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[Any, Any]:
        """Lower and upper ends of intervals that should hold a share ``level`` of the targets.

        Args:
            X: inputs, [examples, features].
            level: share of the targets, in (0, 1).
        """
        lower, upper = self.predict_uncertainty(X).interval(level)
        return lower.numpy(), upper.numpy()

    def predict_uncertainty(self, X: Any) -> Prediction:
        """Mean and standard deviations: total, aleatoric and epistemic, in the unit of the targets.

        Args:
            X: inputs, [examples, features].
        """
        found = super().predict_uncertainty(X)
        assert found.mean is not None
        scale = self.target_scale_
        mean = self.target_mean_ + scale * found.mean
        return replace(
            found,
            mean=mean,
            total=scale * found.total,
            aleatoric=scale * found.aleatoric,
            epistemic=scale * found.epistemic,
        )


class BayesianClassifier(ClassifierMixin, _BayesianNetwork):
    r"""Classification with calibrated probabilities.

    A multilayer perceptron with multiplicative noise gives logits :math:`h \sim \mathcal N(\mu(x), v(x))`, and
    probabilities are :math:`E[\mathrm{softmax}(h)]`. Inputs are standardised inside.

    Args:
        hidden, epochs, learning_rate, kappa, prior_variance, init_rho, batch_size, random_state, device: as in
            :class:`BayesianRegressor`.

    Attributes:
        classes_: the classes, in the order of ``predict_proba``.
        network_: the trained network, for standardised inputs.
        likelihood_: what its output means.
        scaler_: standardises the inputs.
        loss_curve_: the loss of every epoch.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from mnvi.sklearn import BayesianClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = BayesianClassifier(random_state=0).fit(X, y)
        >>> model.predict_proba(X[:2]).shape, bool(model.score(X, y) > 0.9)
        ((2, 3), True)
        >>> model.predict_uncertainty(X[:2]).epistemic.shape
        torch.Size([2])
    """

    def fit(self, X: Any, y: Any) -> BayesianClassifier:
        """Train on a table.

        Args:
            X: inputs, [examples, features].
            y: classes of any type, [examples].
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"BayesianClassifier: y has one class, {self.classes_[0]!r}; expected at least two")
        self._train(X, torch.as_tensor(labels), len(self.classes_), CategoricalLikelihood())
        return self

    def predict(self, X: Any) -> Any:
        """The most likely class of each example.

        Args:
            X: inputs, [examples, features].
        """
        probs = self.predict_proba(X)  # first: it says if the estimator is not fitted
        return self.classes_[probs.argmax(1)]

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes, in the order of ``classes_``.

        Args:
            X: inputs, [examples, features].
        """
        prediction = self.predict_uncertainty(X)
        assert prediction.probs is not None
        return prediction.probs.numpy()
