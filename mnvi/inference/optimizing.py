"""A trained model made fast: batch norm folded, everything that does not depend on the input computed once."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import torch
from torch import nn

from mnvi.conversion.copying import copied
from mnvi.inference.folding import take_out_batch_norms
from mnvi.inference.frozen import can_be_frozen, freeze
from mnvi.layers.base import BayesianLayer, bayesian_layers
from mnvi.moments._torch import plain_call, set_compiled_call

logger = logging.getLogger("mnvi")
ModuleT = TypeVar("ModuleT", bound=nn.Module)


def optimize_for_inference(model: ModuleT, *, compile: bool = True, channels_last: bool | None = None) -> ModuleT:
    r"""A copy of a model for prediction only: same results within float error, in less time.

    Batch norms are folded into the layer before them, means and variances alike; squared weights, weight variances and
    noise variances are computed once. The copy is in evaluation mode and its parameters ask for no gradient; the model
    itself is left alone. A batch norm that does not follow a linear or convolution layer stays, as do all of them in a
    model that ``torch.fx`` cannot trace; the log, under the name "mnvi", says so. Deterministic models are accepted:
    they get their batch norms folded. It is ``forward`` that keeps its results: a batch norm that another method calls
    may be folded away, and arguments other than the defaults that it was traced with are refused.

    ``state_dict`` holds the precomputed tensors beside ``weight`` and ``bias``. Pickles and deep copies are complete
    but not compiled: that is what ``torch.compile(copy)`` is for.

    Args:
        model: any module, as made by :func:`mnvi.convert` or deterministic.
        compile: compile the copy with ``torch.compile``, at its first call and again for a new size of batch.
        channels_last: lay the weights of convolutions, and with them images, out with the channels last. None: if
            compiled. On a CPU that was never slower for LeNet, AllCNN and ResNet18; without compiling it helped the
            first and slowed the last, so measure.

    Example:
        >>> import torch, mnvi
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()).eval()
        >>> bayesian = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> fast = mnvi.optimize_for_inference(bayesian, compile=False)
        >>> fast[1]
        FoldedBatchNorm(dims=4)
        >>> x = torch.ones(2, 1, 5, 5)
        >>> torch.allclose(fast(x).var, bayesian(x).var)
        True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"optimize_for_inference: model must be a torch.nn.Module, got {type(model).__name__}")
    fast = copied("optimize_for_inference", uncompiled(model)).eval().requires_grad_(False)
    norms = take_out_batch_norms(fast)
    for layer in dict.fromkeys([*norms, *bayesian_layers(fast)]):
        if not isinstance(layer, BayesianLayer) or can_be_frozen(layer):
            freeze(layer, norms.get(layer))
        else:
            logger.warning(
                "a layer keeps its posterior %s as it is: the posterior has moments of its own", layer.posterior
            )
    if compile if channels_last is None else channels_last:
        _put_channels_last(fast)
    if compile:
        _compile(fast)
    return fast


def uncompiled(model: ModuleT) -> ModuleT:
    """The module inside what ``torch.compile(module)`` returns."""
    inner: ModuleT = getattr(model, "_orig_mod", model)
    return inner


def _compile(model: nn.Module) -> None:
    """In place: unlike with ``torch.compile(model)`` the model keeps its class and the names in its ``state_dict``."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return plain_call(model, *args, **kwargs)

    set_compiled_call(model, torch.compile(call))


def _put_channels_last(model: nn.Module) -> None:
    """Convolutions take their layout from their weights, whatever their input's is."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.dim() in formats:
            tensor.data = tensor.data.to(memory_format=formats[tensor.dim()])
