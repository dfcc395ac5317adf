"""Full covariances: the value that carries them through a fully connected network, its rules, and DVI.

>>> import torch, mnvi
>>> dvi = mnvi.DVI(mnvi.convert(mnvi.models.mlp(3), mnvi.MeanField(mnvi.EmpiricalBayes())))
>>> out = dvi(torch.ones(5, 3))
>>> out.mean.shape, out.cov.shape
(torch.Size([5, 2]), torch.Size([5, 2, 2]))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnvi.gaussian import Gaussian
from mnvi.moments.relu import relu as relu_moments
from mnvi.precision import full_precision, widened
from mnvi.registry import RuleTable, every
from mnvi.settings import current
from mnvi.value import RandomValue, check_tensors, tree_node, values_can_be_read

RULES = RuleTable("JointGaussian", "mnvi.covariance.rule")

_SMALLEST_VARIANCE = 1e-30  # keeps means over standard deviations finite in float32
_LARGEST_RATIO = 30.0  # beyond it Φ is 0 or 1 and φ is 0 in every dtype
_LARGEST_CORRELATION = 1 - 1e-6  # the ReLU formula's slope is infinite at 1; its value moves by less than 1e-6
_SERIES_BELOW = 0.25  # |ρ| from which asin(ρ) − ρ is computed as it is written
_SERIES = [math.comb(2 * n, n) / (4**n * (2 * n + 1)) for n in range(1, 12)]
_JITTERS = (1e-4, 1e-2, 1e-1)


@tree_node
@dataclass(init=False, repr=False, eq=False)
class JointGaussian(RandomValue):
    r"""Vectors :math:`Z \sim \mathcal N(\mu, C)` with all covariances between their entries; batch entries independent.

    It goes through fully connected networks as :class:`mnvi.Gaussian` goes through all networks: linear layers (with or
    without posterior), ReLU, dropout, sums with and products by known numbers have rules, :func:`rule` adds others. A
    covariance that is known to be diagonal, or zero, is not written out before something needs it.

    Args:
        mean: :math:`\mu`, [..., n].
        cov: :math:`C`, [..., n, n], same dtype and device; taken to be symmetric.

    Example:
        >>> import torch, mnvi
        >>> x = mnvi.JointGaussian(torch.zeros(1, 2), torch.tensor([[[1.0, 0.5], [0.5, 1.0]]]))
        >>> y = torch.relu(x) * 2
        >>> y.cov
        tensor([[[1.3634, 0.5814],
                 [0.5814, 1.3634]]])
        >>> y.marginals().var
        tensor([[1.3634, 1.3634]])
    """

    mean: Tensor
    _spread: Tensor | None  # None: known; [..., n]: independent entries; [..., n, n]

    _rules = RULES
    _fields = ("mean", "_spread")
    _readable = ".mean, .var and .cov"
    __slots__ = ("_spread", "mean")

    def __init__(self, mean: Tensor, cov: Tensor) -> None:
        _check(mean, cov)
        self.mean = mean
        self._spread = cov

    @classmethod
    def trusted(cls, mean: Tensor, spread: Tensor | None = None) -> JointGaussian:
        """A ``JointGaussian`` without looking at its values.

        Args:
            mean: [..., n].
            spread: the covariances [..., n, n]; variances [..., n] where entries are independent; None where known.

        Example:
            >>> import torch, mnvi
            >>> mnvi.JointGaussian.trusted(torch.zeros(1, 2), torch.ones(1, 2)).cov
            tensor([[[1., 0.],
                     [0., 1.]]])
        """
        out = cls.__new__(cls)
        out.mean = mean
        out._spread = spread
        return out

    @property
    def cov(self) -> Tensor:
        """Covariances, [..., n, n]."""
        if self._spread is None:
            return self.mean.new_zeros((*self.mean.shape, self.mean.shape[-1]))
        return self._spread if _is_full(self) else torch.diag_embed(self._spread)

    @property
    def var(self) -> Tensor:
        """Variances, the diagonal of the covariance, [..., n]."""
        if self._spread is None:
            return torch.zeros_like(self.mean)
        return self._spread.diagonal(dim1=-2, dim2=-1) if _is_full(self) else self._spread

    def marginals(self) -> Gaussian:
        """The entries by themselves, their covariances left out."""
        return Gaussian.trusted(self.mean, self.var)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        r"""Draw :math:`z = \mu + L\varepsilon` with :math:`LL^\top = C`, shape ``[num_samples, ..., n]``.

        An approximate covariance need not be positive definite. Where it is not, the correlations are shrunk until they
        are (by a factor of 1.0001, 1.01, 1.1, or as much as it takes); variances stay as they are.

        Example:
            >>> import torch, mnvi
            >>> x = mnvi.JointGaussian(torch.zeros(2), torch.ones(2, 2))
            >>> z = x.sample(5, torch.Generator().manual_seed(0))
            >>> torch.allclose(z[:, 0], z[:, 1], atol=0.01)
            True
        """
        noise = self._noise(num_samples, generator)
        if self._spread is None or not _is_full(self):
            return self.mean + self.std * noise
        return self.mean + self.std * (_correlation_factor(self) @ noise.unsqueeze(-1)).squeeze(-1)

    def __getitem__(self, index: Any) -> Any:
        """``x[batch index]``, ``x[..., entries]`` or both; one entry ``x[..., 0]`` is a :class:`mnvi.Gaussian`."""
        parts: tuple = index if isinstance(index, tuple) else (index,)
        batch: tuple = ()
        entries: tuple = ()
        if parts[0] is Ellipsis:
            entries = parts[1:]
        elif len(parts) == self.dim():
            batch, entries = parts[:-1], parts[-1:]
        else:
            batch = parts
        if len(entries) > 1 or sum(_dims_of(part) for part in batch) > self.dim() - 1:
            raise IndexError(
                f"JointGaussian of shape {tuple(self.shape)}: index {index!r} must be x[batch] or x[..., i]"
            )
        x = self._each(lambda t: t[batch]) if batch else self
        return _entries(x, entries[0]) if entries else x

    def _each(self, function: Callable[[Tensor], Tensor]) -> JointGaussian:
        return JointGaussian.trusted(function(self.mean), None if self._spread is None else function(self._spread))

    def __repr__(self) -> str:
        return f"JointGaussian(mean={self.mean}, cov={self.cov})"


class DVI(nn.Module):
    """Deterministic variational inference with full covariances (Wu et al., 2019): the output is a ``JointGaussian``.

    The network's weights, posteriors and KL stay what they are; this wrapper only sends a :class:`JointGaussian`
    through it instead of a :class:`mnvi.Gaussian`. Weights are independent under every posterior. Time and memory grow
    with the square of the widest layer; the first hidden layer costs no more than without covariances, since its units
    are independent. The diagonal variant, dDVI, is the network without this wrapper.

    Args:
        net: a fully connected network with posteriors, from :func:`mnvi.convert`; DVI's own choice is
            ``mnvi.MeanField(mnvi.EmpiricalBayes())``.

    Example:
        >>> import torch, mnvi
        >>> net = mnvi.convert(mnvi.models.mlp(13), mnvi.MeanField(mnvi.EmpiricalBayes()))
        >>> mnvi.DVI(net)(torch.ones(5, 13)).cov.shape
        torch.Size([5, 2, 2])
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        for name, module in net.named_modules():
            if isinstance(module, nn.modules.conv._ConvNd):
                raise TypeError(
                    f"DVI: layer {name!r} is a {type(module).__name__}; covariances between all units are for fully "
                    "connected networks. Use the network without DVI, which keeps variances alone"
                )
        if not any(hasattr(module, "posterior") for module in net.modules()):
            raise ValueError("DVI: no layer of this network has a posterior; give it one with mnvi.convert")
        self.net = net

    def forward(self, x: Tensor) -> JointGaussian:
        out: JointGaussian = self.net(JointGaussian.trusted(x))
        return out


def rule(*functions: Callable) -> Callable[[Callable], Callable]:
    """Decorator: answer these torch functions for a :class:`JointGaussian`; see :func:`mnvi.rule`.

    Example:
        >>> import torch, mnvi
        >>> @mnvi.covariance.rule(torch.flip)
        ... def flip(x, dims):
        ...     return mnvi.JointGaussian(x.mean.flip(-1), x.cov.flip(-1, -2))
        >>> torch.flip(mnvi.JointGaussian(torch.arange(2.0), torch.eye(2)), (-1,)).mean
        tensor([1., 0.])
    """
    return RULES.rule(*functions)


def linear(
    x: JointGaussian,
    weight: Tensor,
    bias: Tensor | None = None,
    weight_var: Tensor | None = None,
    bias_var: Tensor | None = None,
) -> JointGaussian:
    r"""Linear layer with independent weights; exact.

    .. math:: \mu' = M\mu + b, \qquad C' = M C M^\top + \mathrm{diag}\big(S(\mathrm{diag}\,C + \mu\circ\mu) + s_b\big)

    Args:
        x: the input.
        weight, bias: M and b.
        weight_var: S, in the shape of ``weight``; None for known weights.
        bias_var: :math:`s_b`; None for known biases.

    Example:
        >>> import torch, mnvi
        >>> x = mnvi.JointGaussian(torch.ones(1, 2), torch.eye(2)[None])
        >>> linear(x, torch.ones(2, 2), weight_var=torch.full((2, 2), 0.5)).cov
        tensor([[[4., 2.],
                 [2., 4.]]])
    """
    mean = F.linear(x.mean, weight, bias)
    with full_precision(x.mean):
        own = None
        if weight_var is not None:
            square = widened(x.mean).square()
            second_moment = square if x._spread is None else square + x.var
            own = F.linear(second_moment, widened(weight_var), None if bias_var is None else widened(bias_var))
        if x._spread is None:
            return JointGaussian.trusted(mean, own)
        wide = widened(weight)
        through = (wide @ x._spread if _is_full(x) else wide * x._spread.unsqueeze(-2)) @ wide.T
        return JointGaussian.trusted(mean, through if own is None else through + torch.diag_embed(own))


@RULES.rule(F.linear)
def _known_linear(x: Any, weight: Any, bias: Any = None) -> JointGaussian:
    if not isinstance(x, JointGaussian) or not isinstance(weight, Tensor):
        raise TypeError("linear: only the input may be a JointGaussian; random weights belong to a posterior")
    return linear(x, weight, bias)


@RULES.rule(*every("relu"))
def relu(x: JointGaussian, inplace: bool = False) -> JointGaussian:
    r"""DVI's approximation, with the exact variances on the diagonal.

    With :math:`m = \mu/\sigma`, correlation :math:`\rho`, :math:`r = 1 + \sqrt{1-\rho^2}`,
    :math:`a = \arcsin\rho - \rho/r`:

    .. math::
        C'_{ij} = C_{ij}\Big(\Phi(m_i)\Phi(m_j) + \frac{a}{2\pi}
        \exp\Big(-\frac{\rho(m_i^2 + m_j^2)}{2ar} + \frac{\arcsin\rho - \rho}{a\rho}\,m_i m_j\Big)\Big)

    Exact to third order in :math:`\rho` and at :math:`m = 0`. For unit variances the error is at most 0.006 while
    :math:`|\rho| \le 0.95`, and 0.015 where :math:`|\rho| \to 1`.
    """
    if x._spread is None:
        return JointGaussian.trusted(torch.relu(x.mean))
    mean, var = relu_moments(x.mean, x.var, current.value.relu_floor)
    if not _is_full(x):
        return JointGaussian.trusted(mean, var)
    with full_precision(x.mean):
        scale = x.var.clamp(min=max(current.value.relu_floor, _SMALLEST_VARIANCE)).rsqrt()
        ratio = (widened(x.mean) * scale).clamp(-_LARGEST_RATIO, _LARGEST_RATIO)
        rho = x._spread * scale.unsqueeze(-1) * scale.unsqueeze(-2)
        shrink = _relu_shrink(rho.clamp(-_LARGEST_CORRELATION, _LARGEST_CORRELATION), ratio)
        return JointGaussian.trusted(mean, _with_diagonal(x._spread * shrink, var))


def _relu_shrink(rho: Tensor, ratio: Tensor) -> Tensor:
    """The bracket of :func:`relu`. With h = (asin ρ − ρ)/ρ³ and q = a/ρ = 1 + ρ²h − 1/r every quotient stays finite."""
    m_i, m_j = ratio.unsqueeze(-1), ratio.unsqueeze(-2)
    cdf = torch.special.ndtr(ratio)
    h = _asin_remainder(rho)
    r = 1 + ((1 - rho) * (1 + rho)).sqrt()
    q = 1 + rho.square() * h - 1 / r
    exponent = (rho * h * m_i * m_j - (m_i.square() + m_j.square()) / (2 * r)) / q
    return cdf.unsqueeze(-1) * cdf.unsqueeze(-2) + rho * q * exponent.exp() / (2 * math.pi)


def _asin_remainder(rho: Tensor) -> Tensor:
    """(asin ρ − ρ)/ρ³, 1/6 at 0, by its series where the difference would cancel."""
    square = rho.square()
    series = torch.full_like(rho, _SERIES[-1])
    for coefficient in reversed(_SERIES[:-1]):
        series = series * square + coefficient
    small = rho.abs() < _SERIES_BELOW
    safe = torch.where(small, 0.5, rho)
    return torch.where(small, series, (safe.asin() - safe) / safe**3)


@RULES.rule(F.dropout, torch.dropout)
def dropout(x: JointGaussian, p: float = 0.5, training: bool = True, inplace: bool = False) -> JointGaussian:
    r"""Identity in evaluation; in training variances grow by :math:`\frac{p}{1-p}(v + \mu^2)`, or one mask is drawn."""
    if not training or p == 0:
        return x
    if current.value.dropout == "sample":
        return mul(x, F.dropout(torch.ones_like(x.mean), p))
    own = p / (1 - p) * (x.var + widened(x.mean).square())
    if x._spread is None or not _is_full(x):
        return JointGaussian.trusted(x.mean, x.var + own)
    return JointGaussian.trusted(x.mean, x._spread + torch.diag_embed(own))


@RULES.rule(*every("add"))
def add(a: Any, b: Any, *, alpha: float = 1, out: None = None) -> JointGaussian:
    x, known = _known_operand("add", a, b)
    mean = torch.add(x.mean, known, alpha=alpha) if x is a else torch.add(known, x.mean, alpha=alpha)
    return _like(x if x is a else mul(x, alpha), mean)


@RULES.rule(*every("sub", "subtract"))
def sub(a: Any, b: Any, *, alpha: float = 1, out: None = None) -> JointGaussian:
    return add(a, b, alpha=-alpha)


@RULES.rule(*every("rsub"), Tensor.__rsub__)
def rsub(a: Any, b: Any, *, alpha: float = 1) -> JointGaussian:
    return add(b, a, alpha=-alpha)


@RULES.rule(*every("neg", "negative"))
def neg(x: JointGaussian) -> JointGaussian:
    return mul(x, -1)


@RULES.rule(*every("mul", "multiply"))
def mul(a: Any, b: Any, *, out: None = None) -> JointGaussian:
    x, factor = _known_operand("mul", a, b)
    if x._spread is None:
        return JointGaussian.trusted(x.mean * factor)
    if not isinstance(factor, Tensor) or factor.dim() == 0:
        return JointGaussian.trusted(x.mean * factor, x._spread * (factor * factor))
    if _is_full(x):
        return _like(
            JointGaussian.trusted(x.mean, x._spread * factor.unsqueeze(-1) * factor.unsqueeze(-2)), x.mean * factor
        )
    return _like(JointGaussian.trusted(x.mean, x._spread * factor.square()), x.mean * factor)


@RULES.rule(*every("div", "divide", "true_divide"), Tensor.__truediv__)
def div(a: Any, b: Any) -> JointGaussian:
    if isinstance(b, JointGaussian):
        raise TypeError("div: a JointGaussian can be divided by numbers and tensors, not the other way round")
    return mul(a, 1 / b)


def _entrywise(function: Callable) -> Callable:
    def answer(x: JointGaussian, *args: Any, **kwargs: Any) -> JointGaussian:
        return x._each(lambda t: function(t, *args, **kwargs))

    return answer


def _same_shape(function: Callable) -> Callable:
    def answer(x: JointGaussian, *args: Any, **kwargs: Any) -> JointGaussian:
        mean = function(x.mean, *args, **kwargs)
        if x._spread is not None and mean.shape != x.shape:
            raise ValueError(
                f"{function.__name__}: a JointGaussian of shape {tuple(x.shape)} cannot become {tuple(mean.shape)}; "
                "its covariances are between the entries of the last dimension"
            )
        return JointGaussian.trusted(mean, x._spread)

    return answer


for _names, _make in (
    ("clone detach contiguous to float double", _entrywise),
    ("flatten reshape view squeeze unsqueeze", _same_shape),
):
    for _name in _names.split():
        for _function in every(_name):
            if not _function.__name__.endswith("_"):
                RULES.rule(_function)(_make(_function))


def _known_operand(operation: str, a: Any, b: Any) -> tuple[JointGaussian, Any]:
    x, known = (a, b) if isinstance(a, JointGaussian) else (b, a)
    if not isinstance(known, Tensor | int | float):
        raise TypeError(
            f"{operation}: a JointGaussian takes a number or a tensor, got {type(known).__name__}; how two random "
            "values depend on each other is not tracked"
        )
    return x, known


def _like(x: JointGaussian, mean: Tensor) -> JointGaussian:
    """The spread of x with another mean, which broadcasting may have widened."""
    if x._spread is None:
        return JointGaussian.trusted(mean)
    shape = (*mean.shape, mean.shape[-1]) if _is_full(x) else mean.shape
    if mean.shape[-1] != x.shape[-1]:
        raise ValueError(f"a JointGaussian of shape {tuple(x.shape)} cannot broadcast to {tuple(mean.shape)}")
    return JointGaussian.trusted(mean, x._spread if x._spread.shape == shape else x._spread.expand(shape))


def _is_full(x: JointGaussian) -> bool:
    return x._spread is not None and x._spread.dim() > x.mean.dim()


def _with_diagonal(matrix: Tensor, diagonal: Tensor) -> Tensor:
    eye = torch.eye(matrix.shape[-1], dtype=torch.bool, device=matrix.device)
    return torch.where(eye, diagonal.unsqueeze(-1), matrix)


def _entries(x: JointGaussian, index: Any) -> JointGaussian | Gaussian:
    if isinstance(index, int):
        return Gaussian.trusted(x.mean[..., index], x.var[..., index])
    chosen = torch.arange(x.shape[-1], device=x.device)[index]
    if chosen.dim() != 1:
        raise IndexError(f"JointGaussian: entries {index!r} must be a number, a slice or a list of numbers")
    if x._spread is None or not _is_full(x):
        return x._each(lambda t: t.index_select(-1, chosen))
    return JointGaussian.trusted(
        x.mean.index_select(-1, chosen), x._spread.index_select(-1, chosen).index_select(-2, chosen)
    )


def _dims_of(index: Any) -> int:
    """How many dimensions a part of an index takes."""
    if index is None:
        return 0
    return index.dim() if isinstance(index, Tensor) and index.dtype == torch.bool else 1


def _correlation_factor(x: JointGaussian) -> Tensor:
    """Cholesky factor of the correlations, shrunk towards independence where they are not positive definite."""
    scale = x.var.clamp(min=_SMALLEST_VARIANCE).rsqrt()
    rho = _with_diagonal(x.cov * scale.unsqueeze(-1) * scale.unsqueeze(-2), torch.ones_like(scale))
    size = rho.shape[-1]
    eye = torch.eye(size, dtype=rho.dtype, device=rho.device)
    with torch.no_grad():
        jitter = torch.full_like(rho[..., :1, :1], 16 * size * torch.finfo(rho.dtype).eps)
        for larger in (*_JITTERS, size):
            failed = torch.linalg.cholesky_ex(rho.detach() + jitter * eye).info > 0
            if values_can_be_read(failed) and not failed.any():
                break
            jitter = torch.where(failed[..., None, None], larger, jitter)
    return torch.linalg.cholesky_ex((rho + jitter * eye) / (1 + jitter)).L


def _check(mean: Tensor, cov: Tensor) -> None:
    check_tensors("JointGaussian", mean, "cov", cov)
    if mean.dim() == 0 or cov.shape != (*mean.shape, mean.shape[-1]):
        raise ValueError(
            f"JointGaussian: mean has shape {tuple(mean.shape)} and cov {tuple(cov.shape)}; expected [..., n] and "
            "[..., n, n]"
        )
    if mean.dtype != cov.dtype:
        raise TypeError(f"JointGaussian: mean is {mean.dtype} and cov {cov.dtype}; convert one with .to(dtype)")
    if values_can_be_read(cov) and cov.numel():
        if not cov.detach().isfinite().all():
            raise ValueError("JointGaussian: cov has an entry that is NaN or infinite")
        lowest = cov.detach().diagonal(dim1=-2, dim2=-1).amin()
        if lowest < 0:
            raise ValueError(f"JointGaussian: cov has {lowest.item():g} on its diagonal; variances must be >= 0")
