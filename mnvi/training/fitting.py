"""Trains any network of this library: the loop that most people would write themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mnvi.elbo import ELBO, Objective
from mnvi.likelihoods import CategoricalLikelihood, GaussianLikelihood, Likelihood
from mnvi.likelihoods._noted import note
from mnvi.moments.checking import check_number
from mnvi.training.checkpoints import load
from mnvi.training.fitted import Fitted, Row
from mnvi.training.loaders import count_batches, count_examples, first_pair, labelled
from mnvi.training.loop import Loop
from mnvi.training.predicting import device_of, dtype_of
from mnvi.training.progress import display

_COMPARED = 100  # epochs whose weight of the KL tells one schedule from another


def fit(
    model: nn.Module,
    train: Any,
    *,
    validation: Any = None,
    likelihood: Likelihood | None = None,
    epochs: int = 50,
    learning_rate: float = 1e-2,
    kappa: float | Callable[[int], float] = 0.03,
    batch_size: int = 64,
    num_data: int | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    clip: float | None = None,
    patience: int | None = None,
    checkpoint: str | Path | None = None,
    device: torch.device | str | None = None,
    amp: bool | torch.dtype = False,
    progress: bool = True,
    callback: Callable[[Row], object] | None = None,
) -> Fitted:
    r"""Train a network on the evidence lower bound, in place.

    This works for networks from :func:`mnvi.convert` and for every method of :mod:`mnvi.methods`. A network without
    posteriors trains on its log-likelihood alone. The learning rate falls from ``learning_rate`` to 0 along half a
    cosine. The defaults were chosen with ``mnvi.MultiplicativeNoise(prior_variance=1.0)`` on scikit-learn's digits, see
    the guide; networks with many layers often need a lower learning rate, such as 1e-3.

    ``checkpoint`` names a file for the state after each epoch. After Ctrl-C or a crash, the same call resumes after the
    last finished epoch. Its result is that of an uninterrupted run if all randomness is torch's. If the file holds a
    finished training, the call returns its result; with more ``epochs`` it continues.

    Args:
        model: the network.
        train: a ``DataLoader`` or another collection of batches (inputs, targets), or one pair of tensors or arrays,
            which is shuffled in every epoch.
        validation: data of the same kind. The network ends with the weights of the epoch with the lowest validation
            NLL.
        likelihood: what the output means; by default :class:`mnvi.CategoricalLikelihood` for integer targets and
            :class:`mnvi.GaussianLikelihood` for others. :func:`mnvi.predict` remembers it.
        epochs: passes over the data.
        learning_rate: at the start.
        kappa: weight :math:`\kappa` of the KL, or a function of the epoch such as :class:`mnvi.StepSchedule`.
        batch_size: for pairs of tensors or arrays.
        num_data: number of training targets N, by default what the loader says.
        optimizer: called with the parameters and ``lr=``; ``functools.partial`` sets more.
        clip: largest norm of the gradient; a larger one is scaled down.
        patience: stop if the validation NLL has not improved for this many epochs.
        checkpoint: a file for the state.
        device: moves the network there; by default it stays where it is.
        amp: mixed precision: True, or the lower dtype. True means bfloat16, and float16 with scaled losses on GPUs
            without bfloat16.
        progress: show a bar with tqdm if it is installed, otherwise a line for each epoch.
        callback: called with each epoch's row of scores.

    Example:
        >>> import torch, mnvi
        >>> x = torch.randn(200, 4)
        >>> net = mnvi.convert(mnvi.models.mlp(4, out_features=2), mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> fitted = mnvi.fit(net, (x, (x[:, 0] > 0).long()), epochs=5, progress=False)
        >>> mnvi.predict(net, x[:3]).probs.shape
        torch.Size([3, 2])
    """
    _check(epochs, learning_rate, num_data, clip, patience, validation, optimizer)
    place, kind = device_of(model, device), dtype_of(model)
    batches = labelled("fit", "train", train, batch_size, kind, shuffle=True)
    held_out = None if validation is None else labelled("fit", "validation", validation, batch_size, kind)
    _, targets = first_pair("fit", "train", batches)
    if held_out is not None:
        first_pair("fit", "validation", held_out)
    if likelihood is None:
        likelihood = GaussianLikelihood() if targets.is_floating_point() else CategoricalLikelihood()
    objective = Objective(model, ELBO(likelihood, num_data or _count(batches, targets), kappa)).to(place)
    loop = Loop(
        objective,
        optimizer(objective.parameters(), lr=learning_rate),
        batches,
        held_out,
        place,
        clip=clip,
        lower=_lower_precision(amp, place),
    )
    path = None if checkpoint is None else Path(checkpoint)
    settings = {
        "epochs": epochs,
        "learning_rate": learning_rate,
        "kappa": kappa if isinstance(kappa, int | float) else [float(kappa(epoch)) for epoch in range(_COMPARED)],
        "num_data": objective.elbo.num_data,
        "batches": count_batches(batches),
        "optimizer": type(loop.optimizer).__name__,
        "clip": clip,
        "amp": str(amp),
        "likelihood": type(likelihood).__name__,
        "parameters": {name: list(value.shape) for name, value in objective.state_dict().items()},
    }
    if path is not None and (state := load(path, settings)) is not None:
        loop.load_state_dict(state)
    note(model, likelihood)
    shown = display(progress, epochs, count_batches(batches), loop.epoch)
    try:
        if loop.epoch:
            shown.say(f"fit: resuming after epoch {loop.epoch} from {path}")
        stopped = loop.run(epochs, patience, path, settings, shown, callback)
    except KeyboardInterrupt:
        kept = f"; the same call resumes there, from {path}" if path else "; give checkpoint='…' to resume another time"
        shown.say(f"fit: stopped after {loop.epoch} of {epochs} epochs{kept}")
        raise
    finally:
        shown.close()
    return Fitted(model, likelihood, loop.history, loop.finish(), stopped)


def _check(
    epochs: int,
    learning_rate: float,
    num_data: int | None,
    clip: float | None,
    patience: int | None,
    validation: Any,
    optimizer: Any,
) -> None:
    check_number("fit: epochs", epochs, least=1, whole=True)
    check_number("fit: learning_rate", learning_rate, above=0)
    if num_data is not None:
        check_number("fit: num_data", num_data, least=1)
    if clip is not None:
        check_number("fit: clip", clip, above=0)
    if patience is not None:
        check_number("fit: patience", patience, least=1, whole=True)
        if validation is None:
            raise ValueError(f"fit: patience={patience} needs validation data to stop by; give validation=(x, y)")
    if isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"fit: optimizer is a finished {type(optimizer).__name__}; give its class, e.g. torch.optim.AdamW, or "
            "functools.partial(torch.optim.SGD, momentum=0.9)"
        )


def _count(batches: Iterable[Any], targets: Tensor) -> int:
    """The number of training targets: of examples, times the targets of each."""
    examples = count_examples(batches)
    if examples is None:
        raise ValueError(
            f"fit: num_data=None, and {type(batches).__name__} does not say how many examples it has; give num_data, "
            "by which the KL is divided"
        )
    return examples * max(1, math.prod(targets.shape[1:]))


def _lower_precision(amp: bool | torch.dtype, device: torch.device) -> torch.dtype | None:
    if amp is False:
        return None
    if isinstance(amp, torch.dtype):
        if amp not in (torch.bfloat16, torch.float16):
            raise ValueError(f"fit: amp={amp} must be True, False, torch.bfloat16 or torch.float16")
        return amp
    if device.type == "cuda" and not torch.cuda.is_bf16_supported():
        return torch.float16
    return torch.bfloat16
