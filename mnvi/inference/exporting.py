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
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mnvi.inference.optimizing import uncompiled
from mnvi.moments._torch import compiled_call, set_compiled_call
from mnvi.values.gaussian import Gaussian

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def export(model: nn.Module, path: str | os.PathLike[str], example: Tensor | tuple[Tensor, ...]) -> None:
    """Write a model to a file that any runtime can load, for batches of any size.

    A model with a posterior gets two outputs, ``mean`` and ``variance``; a deterministic one gets ``output``. The
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
    with _quiet(), evaluation_mode(model), torch.no_grad():
        output_names = _output_names(model(*inputs))
        program = _trace(model, inputs)
        # a temporary folder, not a temporary file, so that the file gets the usual permissions
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            unfinished = Path(folder) / path.name
            write(program, unfinished, input_names, output_names)
            os.replace(unfinished, path)


class _PlainOutputs(nn.Module):
    """Returns only tensors, so that loading the file needs no class of this library."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        out = self.model(*inputs)
        return (out.mean, out.var) if isinstance(out, Gaussian) else out


def _trace(model: nn.Module, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    # torch would take a batch of one for a constant
    inputs = tuple(torch.cat([x, x]) if len(x) == 1 else x for x in inputs)
    batch = torch.export.Dim("batch")
    return torch.export.export(
        _PlainOutputs(model).eval(), inputs, dynamic_shapes={"inputs": tuple({0: batch} for _ in inputs)}
    )


def _output_names(out: object) -> list[str]:
    if isinstance(out, Gaussian):
        return ["mean", "variance"]
    if isinstance(out, Tensor):
        return ["output"]
    raise TypeError(
        f"export: the model returns {type(out).__name__}; only models that return a mnvi.Gaussian or a tensor can be "
        "exported"
    )


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
