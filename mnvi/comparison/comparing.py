"""The check that a new kind of network needs first: are the predicted variances those of sampled weights?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mnvi.comparison.observing import Observer, Seen
from mnvi.comparison.result import ComparedLayer, Comparison
from mnvi.comparison.sampled_weights import drawn_weights
from mnvi.inference.optimizing import uncompiled
from mnvi.layers.base import bayesian_layers
from mnvi.methods.dvi import DVI
from mnvi.moments._torch import plain_call, pytree
from mnvi.moments.checking import check_number
from mnvi.values.base import RandomValue
from mnvi.values.gaussian import Gaussian


@torch.no_grad()
def compare_with_sampling(
    model: nn.Module,
    x: Any,
    num_samples: int = 200,
    *,
    chunk: int | None = None,
    max_entries: int = 2048,
    generator: torch.Generator | None = None,
) -> Comparison:
    r"""Compare predicted means and standard deviations with those of sampled weights, for every layer and the output.

    One pass predicts. Then S passes each draw every weight once, for all examples and positions, which is what the
    posterior says:

    .. math:: \hat\mu = \frac1S \sum_s f(x; w^s), \qquad
              \hat\sigma^2 = \frac1{S-1} \sum_s \big(f(x; w^s) - \hat\mu\big)^2, \qquad w^s \sim q(w)

    Do this first with a new kind of network: it shows what the rules lose by neglecting correlations between
    entries. ``mnvi.options`` in force apply to the prediction. ``print`` shows a table; see :class:`Comparison`.

    Memory is that of one pass, one copy of the weights, and six numbers for each entry that is watched.

    Args:
        model: from :func:`mnvi.convert`, in evaluation mode. It is not changed.
        x: its input; a tuple of several arguments, a mapping of keyword arguments. Inputs that are a
            :class:`mnvi.Gaussian` are drawn, too.
        num_samples: S; standard deviations come with a relative error of about :math:`1/\sqrt{2S}`.
        chunk: number of examples in one pass, to bound memory; None for all. It splits the first dimension of every
            tensor in ``x``.
        max_entries: the largest number of entries to watch in each layer's output, chosen at random.
        generator: makes the result reproducible.

    Example:
        >>> import torch, mnvi
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))
        >>> bayesian = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1.0)).eval()
        >>> compared = mnvi.compare_with_sampling(bayesian, torch.randn(8, 4))
        >>> [layer.name for layer in compared.layers], compared.output.sampled_std.shape
        (['0', '1', '2'], torch.Size([8, 3]))
        >>> 0.7 < compared.output.row()["std_ratio_median"] < 1.4
        True
    """
    check_number("compare_with_sampling: num_samples", num_samples, least=2, whole=True)
    check_number("compare_with_sampling: max_entries", max_entries, least=1, whole=True)
    if chunk is not None:
        check_number("compare_with_sampling: chunk", chunk, least=1, whole=True)
    model = uncompiled(model)
    _check_model(model)
    chunks = list(_split(x, chunk))
    drawn = model.net if isinstance(model, DVI) else model  # with drawn weights there is no covariance to carry
    observer = Observer(drawn, max(1, max_entries // len(chunks)), generator)
    for number, part in enumerate(chunks):
        with observer.predicting(number):
            _call(model, part)
    if not any(not place.module for place in observer.seen):
        raise ValueError(
            "compare_with_sampling: the model's output is no Gaussian, so that there is no prediction to compare; "
            "mnvi.convert without mnvi.Sampled makes a model that predicts"
        )
    for _ in range(num_samples):
        with drawn_weights(drawn, generator):
            for number, part in enumerate(chunks):
                with observer.sampling(number):
                    _call(drawn, _drawn_inputs(part, generator))
    return Comparison(_joined(observer, num_samples), num_samples)


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"compare_with_sampling: model must be a torch.nn.Module, got {type(model).__name__}")
    if not bayesian_layers(model):
        raise ValueError("compare_with_sampling: no layer of the model has a posterior; give it one with mnvi.convert")
    training = [name for name, module in model.named_modules() if module.training]
    if training:
        where = "the model" if not training[0] else f"module {training[0]!r}"
        raise ValueError(
            f"compare_with_sampling: {where} is in training mode, where batch norms use the statistics of the batch "
            "and dropout is random; call model.eval() first"
        )


def _call(model: nn.Module, x: Any) -> Any:
    """``model(x)``, hooks included, even if it is compiled."""
    if isinstance(x, Mapping):
        return plain_call(model, **x)
    return plain_call(model, *x) if isinstance(x, tuple) else plain_call(model, x)


def _is_value(x: Any) -> bool:
    return isinstance(x, RandomValue | Tensor)


def _split(x: Any, chunk: int | None) -> Iterator[Any]:
    values = [value for value in pytree.tree_leaves(x, is_leaf=_is_value) if _is_value(value)]
    sizes = {len(value) if value.dim() else 0 for value in values}
    if chunk is None:
        yield x
        return
    if len(sizes) != 1:
        raise ValueError(
            f"compare_with_sampling: chunk={chunk} splits the examples, but the first dimensions of the inputs are "
            f"{sorted(sizes)}; leave chunk out"
        )
    for start in range(0, sizes.pop(), chunk):
        part = slice(start, start + chunk)
        yield pytree.tree_map(lambda value: value[part] if _is_value(value) else value, x, is_leaf=_is_value)  # noqa: B023


def _drawn_inputs(x: Any, generator: torch.Generator | None) -> Any:
    def drawn(value: Any) -> Any:
        return value.sample(1, generator)[0] if isinstance(value, Gaussian) else value

    return pytree.tree_map(drawn, x, is_leaf=_is_value)


def _joined(observer: Observer, num_samples: int) -> list[ComparedLayer]:
    """One result for each module, part of its output and call, with the examples of all chunks."""
    groups: dict[tuple[str, str, int], list[Seen]] = {}
    for place, seen in observer.seen.items():
        if seen.count != num_samples:
            raise RuntimeError(
                f"compare_with_sampling: module {place.module!r} runs in the prediction, but in only {seen.count} of "
                f"{num_samples} passes with drawn weights; a network must call the same modules whatever its values"
            )
        groups.setdefault((place.module, place.part, place.call), []).append(seen)
    return [_compared(_label(*key), not key[0], parts) for key, parts in groups.items()]


def _label(module: str, part: str, call: int) -> str:
    return f"{module or 'output'}{part}" + (f" (call {call + 1})" if call else "")


def _compared(name: str, is_output: bool, parts: list[Seen]) -> ComparedLayer:
    """Mean, standard deviation and their standard errors; the latter for any distribution, from the fourth moment."""
    first, count = parts[0], parts[0].count
    shape = torch.Size((sum(part.shape[0] for part in parts), *first.shape[1:])) if len(parts) > 1 else first.shape
    everything = all(part.entries is None for part in parts)

    def laid_out(values: list[Tensor]) -> Tensor:
        joined = torch.cat(values)
        return joined.view(shape) if everything else joined

    mean, std = (laid_out([getattr(part, name) for part in parts]) for name in ("mean", "std"))
    one, two, three, four = (laid_out([part.powers[power] / count for part in parts]) for power in range(4))
    second = (two - one**2).clamp(min=0)
    fourth = (four - 4 * one * three + 6 * one**2 * two - 3 * one**4).clamp(min=0)
    variance = second * count / (count - 1)
    sampled = variance.sqrt()
    variance_error = ((fourth - second**2).clamp(min=0) / count).sqrt()
    moves = sampled > 0
    return ComparedLayer(
        name=name,
        kind=first.kind,
        shape=shape,
        predicted_mean=mean,
        predicted_std=std,
        sampled_mean=mean + one,
        sampled_std=sampled,
        mean_error=(variance / count).sqrt(),
        std_error=torch.where(moves, variance_error / (2 * sampled.where(moves, 1.0)), 0.0),
        is_output=is_output,
    )
