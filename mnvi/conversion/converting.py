"""Model in, Bayesian model out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar, cast

from torch import Tensor, nn

from mnvi.conversion.calling import call_all_layers
from mnvi.conversion.class_changes import warn_if_classes_change
from mnvi.conversion.copying import copied
from mnvi.conversion.mean_calls import adapt_mean_calls, explain_mean_calls
from mnvi.conversion.obstacles import obstacle, warn_if_mostly_deterministic
from mnvi.conversion.subclasses import behaviour_check, is_layer, make_bayesian
from mnvi.conversion.watching import watch_weights
from mnvi.conversion.weight_norms import renew_weight_norms
from mnvi.layers.base import BayesianLayer
from mnvi.layers.embedding import Embedding
from mnvi.layers.registry import BAYESIAN
from mnvi.moments import outer_products
from mnvi.posteriors import Posterior, with_variance

ModuleT = TypeVar("ModuleT", bound=nn.Module)
Selector = str | type[nn.Module] | Callable[[str, nn.Module], bool]
Selectors = Selector | Iterable[Selector]


def convert(
    model: ModuleT,
    posterior: Posterior | Mapping[str, Posterior],
    *,
    only: Selectors | None = None,
    skip: Selectors | None = None,
    example: Tensor | None = None,
) -> ModuleT:
    """A copy of a model in which every layer with weights has a posterior; the model itself stays unchanged.

    Linear, bilinear and convolution layers, embeddings, and the layers inside attention and recurrent layers get one;
    norms do not.

    The copy returns a :class:`mnvi.Gaussian` where the model returned a tensor. Weights keep their values and names.
    A module that occurs twice is converted once; layers with tied weights also share their posterior's parameters.

    Subclasses of these layers keep their class and their ``forward`` if it calls ``super().forward``. Weight norm and
    other parametrisations stay; the posterior is then one over the computed weight. :func:`register_layer` adds layers
    that compute with their weight themselves; those of timm, Hugging Face and EfficientNet packages are known.

    A posterior acts when its layer is called. ``torch.nn.MultiheadAttention``, torch's transformer encoder and
    torchvision's Swin use weights without calling their layers; the copy calls them (see
    :class:`mnvi.layers.MultiheadAttention`). If your own module uses ``layer.weight`` itself, the first forward pass
    warns with :class:`mnvi.UnusedPosteriorWarning`: make it call the layer instead. Conversion also rewrites calls of
    ``x.mean(dim)`` in a module's methods, in functions that it holds as attributes, and in functions that these call by
    their name, ``pool(x)``. It does not reach ``pooling.pool(x)``: there the call fails, and the error names the line
    and what to write, ``torch.mean(x, dim)``.

    A warning names the classes that hold most weights if they are none of the known ones: their weights stay
    deterministic. :func:`mnvi.summary` lists every layer.

    Args:
        model: any module, a single layer included.
        posterior: one for all layers, or a mapping from name patterns (as in ``fnmatch``) to posteriors. The first
            match counts; layers that match no pattern stay deterministic.
        only: layers to convert: a name pattern, a module class, a function of name and module, or several of these.
        skip: layers to leave deterministic, given in the same ways.
        example: inputs to try a trained classifier on. If the noise changes the most likely class of more than 5 % of
            them, a warning says so and what to do; noise that a deep network never saw in training may destroy it.

    Example:
        >>> import torch, mnvi
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> bayesian = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> bayesian(torch.ones(3, 4)).var.shape
        torch.Size([3, 2])
        >>> mixed = mnvi.convert(net, {"2": mnvi.MeanField(1.0), "*": mnvi.MultiplicativeNoise(1.0)})
        >>> type(mixed[2].posterior).__name__
        'MeanField'
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"convert: model must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(posterior, Posterior | Mapping):
        raise TypeError(
            "convert: posterior must be e.g. mnvi.MultiplicativeNoise(prior_variance=1.0), or a mapping from name "
            f"patterns to posteriors; got {posterior!r}"
        )
    posteriors = {"*": posterior} if isinstance(posterior, Posterior) else posterior
    for pattern, value in posteriors.items():
        if not isinstance(value, Posterior):
            raise TypeError(
                f"convert: posterior[{pattern!r}] must be e.g. mnvi.MultiplicativeNoise(prior_variance=1.0), got "
                f"{value!r}"
            )
    selection = posteriors, None if only is None else _as_list("only", only), _as_list("skip", skip)
    try:
        converted = copied("convert", model)
    except ValueError:
        _choose(model, *selection)  # names the layer if it can
        raise
    call_all_layers(converted)
    renew_weight_norms(converted)
    for module in converted.modules():
        adapt_mean_calls(module)
    chosen = _choose(converted, *selection)
    by_weight: dict[int, BayesianLayer] = {}
    last = list(chosen)[-1] or None  # None: the model itself is a layer, which has no name
    # an embedding that shares its weight with a linear layer takes that layer's posterior, so it comes after it
    embeddings_last = sorted(chosen, key=lambda name: isinstance(converted.get_submodule(name), nn.Embedding))
    for name in embeddings_last:
        layer_posterior = chosen[name]
        module = converted.get_submodule(name)
        check = behaviour_check(name, module)
        make_bayesian(module)
        layer = cast(BayesianLayer, module)
        twin = by_weight.setdefault(id(layer.stored_weight), layer)
        if twin is layer:
            if name == last and outer_products.is_small_output(layer.geometry, layer.weight):
                layer_posterior = with_variance(layer_posterior, "exact")
            layer.adopt(layer_posterior)
        else:
            _share_posterior(name, layer, twin, layer_posterior)
        check(layer)
    if only is None:
        warn_if_mostly_deterministic(converted)
    explain_mean_calls(converted)
    watch_weights(converted)
    if example is not None:
        warn_if_classes_change(model, converted, example)
    return converted


def _choose(
    model: nn.Module, posteriors: Mapping[str, Posterior], only: list[Selector] | None, skip: list[Selector]
) -> dict[str, Posterior]:
    candidates: dict[str, nn.Module] = {
        name: cast(nn.Module, module) for name, module in model.named_modules() if is_layer(module)
    }
    for role, selectors in (("posterior", list(posteriors)), ("only", only or []), ("skip", skip)):
        for selector in selectors:
            if selector != "*" and not any(_selects(selector, *item) for item in candidates.items()):
                raise ValueError(
                    f"convert: {role}={selector!r} matches none of the model's layers: "
                    f"{', '.join(map(repr, list(candidates)[:8]))}{' …' if len(candidates) > 8 else ''}"
                )
    chosen: dict[str, Posterior] = {}
    for name, module in candidates.items():
        if only is not None and not any(_selects(s, name, module) for s in only):
            continue
        if any(_selects(s, name, module) for s in skip):
            continue
        matching = [value for pattern, value in posteriors.items() if fnmatchcase(name, pattern)]
        if matching:
            chosen[name] = matching[0]
    if not chosen:
        known = ", ".join(kind.__name__ for kind in BAYESIAN if kind.__module__.startswith("torch."))
        raise ValueError(
            f"convert: there is no layer to convert; layers must be {known}, neither scripted nor quantised, and "
            "only/skip must leave one"
        )
    for name in chosen:
        if reason := obstacle(candidates[name]):
            raise ValueError(f"convert: layer {name!r} ({type(candidates[name]).__name__}) {reason}, or skip={name!r}")
    return chosen


def _as_list(role: str, selectors: Selectors | None) -> list[Selector]:
    if selectors is None:
        return []
    single = isinstance(selectors, str) or callable(selectors)
    found = [cast(Selector, selectors)] if single else list(cast(Iterable[Selector], selectors))
    for selector in found:
        if isinstance(selector, nn.Module) or not (isinstance(selector, str) or callable(selector)):
            raise TypeError(
                f"convert: {role}={selector!r} must be a name pattern such as 'layer1.*', a module class, or a "
                "function of name and module"
            )
    return found


def _selects(selector: Selector, name: str, module: nn.Module) -> bool:
    if isinstance(selector, str):
        return fnmatchcase(name, selector)
    if isinstance(selector, type):
        return isinstance(module, selector)
    return bool(selector(name, module))


def _share_posterior(name: str, layer: BayesianLayer, twin: BayesianLayer, posterior: Posterior) -> None:
    if isinstance(layer, Embedding) and isinstance(twin, nn.Linear):
        layer.tied_to_linear = True
    alike = type(layer) is type(twin) or (isinstance(layer, Embedding) and layer.tied_to_linear)
    if not alike or posterior != twin.posterior or layer.in_units != twin.in_units:
        raise ValueError(
            f"convert: layer {name!r} shares its weight with a layer of another kind or posterior; tied weights have "
            f"one posterior, so skip={name!r} or untie them"
        )
    if layer.bias is not twin.bias and twin.bias_variance() is not None and not isinstance(layer, Embedding):
        raise ValueError(
            f"convert: layer {name!r} shares its weight but not its bias with another, and {type(posterior).__name__} "
            f"has a posterior over biases too; tie the biases, skip={name!r}, or use mnvi.MultiplicativeNoise"
        )
    layer.posterior, layer.own_names = posterior, ("weight", "bias", *layer._parameters)
    for parameter_name, parameter in twin._parameters.items():
        if parameter_name not in twin.own_names:
            of_bias = parameter_name == "bias_log_var" and isinstance(layer, Embedding)
            layer.register_parameter(parameter_name, None if of_bias else parameter)
