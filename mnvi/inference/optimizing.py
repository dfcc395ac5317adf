"""Makes a trained model fast: folds batch norms and computes once everything that does not depend on the input."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import torch
from torch import nn

from mnvi.conversion.copying import copied
from mnvi.inference.folding import fold_batch_norms
from mnvi.inference.frozen import can_be_frozen, freeze, is_frozen
from mnvi.inference.variances import set_variances
from mnvi.layers.base import BayesianLayer, bayesian_layers, layers_with_own_weight
from mnvi.layers.computed import store_weight
from mnvi.moments._torch import compiler_options, plain_call, set_compiled_call
from mnvi.posteriors import Variance, check_variance

logger = logging.getLogger("mnvi")
ModuleT = TypeVar("ModuleT", bound=nn.Module)


def optimize_for_inference(
    model: ModuleT, *, compile: bool = True, channels_last: bool | None = None, variance: Variance | None = None
) -> ModuleT:
    r"""A copy of a model for prediction only: same results within float error, in less time.

    Each batch norm is folded into the layer before it, for means and variances; squared weights, weight variances and
    noise variances are computed once. The copy is in evaluation mode and its parameters require no gradient; the model
    itself stays unchanged. A batch norm that does not follow a linear or convolution layer stays, as do all of them in
    a model that ``torch.fx`` cannot trace; the log, under the name "mnvi", reports this. For deterministic models, too,
    batch norms are folded. Only ``forward`` keeps its results: a batch norm that another method calls may be gone, and
    ``forward`` refuses arguments that differ from the defaults it was traced with.

    ``state_dict`` holds the precomputed tensors beside ``weight`` and ``bias``. Pickles and deep copies are complete
    but not compiled; call ``torch.compile(copy)`` on them.

    Args:
        model: any module, from :func:`mnvi.convert` or deterministic.
        compile: compile the copy with ``torch.compile``, at its first call and again for a new batch size.
        channels_last: store the weights of convolutions, and with them images, with the channels last. None means only
            if compiled. On a CPU this was never slower for compiled LeNet, AllCNN and ResNet18; without compiling it
            sped up the first and slowed down the last, so measure.
        variance: "factored" replaces squared weights by an outer product with the same row and column sums
            (:mod:`mnvi.moments.factored`), so that uncertainty costs a fraction of the mean. Results change;
            :func:`mnvi.inference.variances.set_variances` says which layers stay exact. None leaves every layer as
            it was trained, "exact" makes all layers exact.

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
    layers_with_own_weight("optimize_for_inference", model)  # refuses weights that were tied after mnvi.convert
    fast = copied("optimize_for_inference", uncompiled(model)).eval().requires_grad_(False)
    for layer in bayesian_layers(fast):
        if hasattr(layer, "stored_as"):  # its weight is computed, from now on it is a constant
            store_weight(layer)
    if variance is not None:
        check_variance("optimize_for_inference", variance)
        set_variances(fast, variance)
    fold_batch_norms(fast)
    kept = []
    for name, layer in fast.named_modules():
        if not isinstance(layer, BayesianLayer):
            continue
        if can_be_frozen(layer):
            freeze(layer)
        elif not is_frozen(layer):
            kept.append(f"{name} ({layer.posterior})")
    if kept:
        logger.warning("layers keep posteriors that override Posterior.moments as they are: %s", ", ".join(kept))
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
    """Compile in place: unlike ``torch.compile(model)`` this keeps the model's class and names in its state."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return plain_call(model, *args, **kwargs)

    set_compiled_call(model, torch.compile(call, options=compiler_options()))


def _put_channels_last(model: nn.Module) -> None:
    """Store weights with channels last: convolutions use the layout of their weights, not that of their input."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.dim() in formats:
            tensor.data = tensor.data.to(memory_format=formats[tensor.dim()])
