"""Saves a model to a file that runs without this library: ONNX, or torch's ``.pt2``."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mnvi.inference.exported_outputs import PlainOutputs
from mnvi.inference.optimizing import uncompiled
from mnvi.layers.base import layers_with_own_weight
from mnvi.likelihoods import Likelihood
from mnvi.moments._torch import compiled_call, set_compiled_call

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def export(
    model: nn.Module,
    path: str | os.PathLike[str],
    example: Tensor | tuple[Tensor, ...],
    *,
    likelihood: Likelihood | None = None,
    free_size: bool = False,
) -> None:
    """Write a model to a file that any runtime can load, for batches of any size.

    A model with a posterior gets two outputs, ``mean`` and ``variance``; a deterministic one gets ``output``. A model
    that returns a dictionary gets these for each key, ``<key>_mean`` and so on. With a likelihood the file also holds
    what the outputs mean: ``probs`` of classes, or ``predicted_mean`` and ``predicted_std`` of numbers. The
    export uses evaluation mode and restores the model's mode. The file appears under its name once it is complete.

    ONNX has no complementary error function and uses :math:`1 - \\operatorname{erf}` instead. After a ReLU, moments for
    means far below zero (five standard deviations and more) then have an error of up to 2e-7 of the standard deviation
    and variance, instead of being tiny and exact.

    Args:
        model: a model from :func:`mnvi.convert` or :func:`mnvi.optimize_for_inference`, or a deterministic one.
            Optimising first makes the file larger, up to twice, and does not make onnxruntime noticeably faster.
        path: ends in ``.onnx`` (needs the extra ``mnvi[export]``; one file, weights included) or ``.pt2`` (for
            ``torch.export.load``); its folder must exist.
        example: an input, or a tuple of inputs, with the batch as dimension 0. Other sizes become fixed.
        likelihood: such as ``mnvi.CategoricalLikelihood()``. Where it samples, the file holds the noise, the same for
            every example, so that the same input always gets the same answer.
        free_size: whether images, [batch, channels, height, width], may have any height and width; for networks that
            pool over the whole image.

    Example:
        >>> import pathlib, tempfile, torch, mnvi
        >>> net = mnvi.convert(mnvi.models.mlp(4), mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "model.pt2"
        ...     mnvi.export(net, path, torch.ones(1, 4))
        ...     mean, variance = torch.export.load(path).module()(torch.ones(8, 4))
        >>> variance.shape
        torch.Size([8, 2])
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"export: model must be a torch.nn.Module, got {type(model).__name__}")
    path = Path(path)
    write = _writer(path)
    inputs = _checked_inputs(example)
    input_names = ["input"] if len(inputs) == 1 else [f"input{i}" for i in range(len(inputs))]
    model = uncompiled(model)
    layers_with_own_weight("export", model)  # refuses weights that were tied after mnvi.convert
    with contextlib.ExitStack() as restored, _quiet(), evaluation_mode(model), torch.no_grad():
        if isinstance(likelihood, nn.Module):
            restored.enter_context(evaluation_mode(likelihood))
        plain = PlainOutputs(model, likelihood, inputs).eval()
        output_names = plain.names
        program = _trace(plain, inputs, free_size)
        # a temporary folder, not a temporary file, so that the file gets the usual permissions
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            unfinished = Path(folder) / path.name
            write(program, unfinished, input_names, output_names)
            os.replace(unfinished, path)


def _trace(model: nn.Module, inputs: tuple[Tensor, ...], free_size: bool) -> ExportedProgram:
    # torch would take a batch of one for a constant
    inputs = tuple(torch.cat([x, x]) if len(x) == 1 else x for x in inputs)
    sizes: dict[int, Any] = {0: torch.export.Dim("batch")}
    free = dict.fromkeys((2, 3), torch.export.Dim.DYNAMIC) if free_size else {}
    if free_size and any(x.dim() != 4 for x in inputs):
        raise ValueError("export: free_size=True is for images, [batch, channels, height, width]; leave it out")
    program = torch.export.export(model, inputs, dynamic_shapes={"inputs": tuple({**sizes, **free} for _ in inputs)})
    if free_size:
        _check_other_size(program, inputs)
    return program


def _check_other_size(program: ExportedProgram, inputs: tuple[Tensor, ...]) -> None:
    """torch notices only when it runs that a program works with one size alone."""
    larger = [torch.cat([torch.cat([x, x], 2)] * 2, 3) for x in inputs]
    try:
        program.module()(*larger)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            "export: free_size=True, but the network works with one image size only, for instance because a linear "
            "layer follows a flattened image; leave it out, or pool over the whole image first"
        ) from error


def _checked_inputs(example: object) -> tuple[Tensor, ...]:
    inputs = example if isinstance(example, tuple) else (example,)
    if not inputs or not all(isinstance(x, Tensor) for x in inputs):
        raise TypeError(
            "export: example must be an input tensor or a tuple of them, e.g. torch.zeros(1, 3, 32, 32), got "
            f"{', '.join(type(x).__name__ for x in inputs) or 'an empty tuple'}"
        )
    sizes = {x.shape[0] if x.dim() else 0 for x in inputs}
    if len(sizes) > 1 or 0 in sizes:
        raise ValueError(
            "export: dimension 0 of every example is the batch, of equal size >= 1; got shapes "
            f"{', '.join(str(tuple(x.shape)) for x in inputs)}"
        )
    return inputs


Writer = Callable[["ExportedProgram", Path, list[str], list[str]], None]


def _writer(path: Path) -> Writer:
    writers: dict[str, Writer] = {".onnx": _write_onnx, ".pt2": _write_pt2}
    if path.suffix not in writers:
        raise ValueError(f"export: path={str(path)!r} must end in {' or '.join(writers)}, which chooses the format")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"export: there is no folder {str(path.parent)!r}; create it first")
    if path.suffix == ".onnx":
        for package in ("onnx", "onnxscript"):
            try:
                importlib.import_module(package)
            except ModuleNotFoundError as error:
                if error.name != package:
                    raise
                raise ImportError(f"export: {package} is not installed: run `pip install 'mnvi[export]'`") from error
    return writers[path.suffix]


def _write_pt2(program: ExportedProgram, path: Path, inputs: list[str], outputs: list[str]) -> None:
    torch.export.save(program, path)


def _write_onnx(program: ExportedProgram, path: Path, inputs: list[str], outputs: list[str]) -> None:
    import onnx

    converted = torch.onnx.export(program, (), dynamo=True, verbose=False, input_names=inputs)
    assert converted is not None
    graph = converted.model.graph
    for value in [value for node in graph for value in node.outputs if value.name in outputs]:
        value.name = f"{value.name}_inside"  # the exporter names values after operations, one of which is called mean
    for value, name in zip(graph.outputs, outputs, strict=True):
        value.name = name
    converted.save(path, external_data=False)
    onnx.checker.check_model(path, full_check=True)


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode, uncompiled; afterwards restore every module."""
    before = [(module, module.training, compiled_call(module)) for module in model.modules()]
    model.eval()
    for module, _, _ in before:
        set_compiled_call(module, None)
    try:
        yield
    finally:
        for module, training, compiled in before:
            module.training = training
            set_compiled_call(module, compiled)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter, which reports progress and deprecations to users who did not call it."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
