"""Functions of sampled logits in bounded memory: some positions at a time, drawn again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mnvi.moments._torch import is_compiling, is_traced
from mnvi.moments.expectations import recomputed
from mnvi.values.gaussian import Gaussian
from mnvi.values.joint import JointGaussian

Parts = tuple[Tensor, ...]

_IN_CACHE = 1 << 20


def fits(out: Gaussian | JointGaussian, num_samples: int, max_elements: int) -> bool:
    """Whether all samples of an output may be in memory at once."""
    return num_samples * out.mean.numel() <= max_elements


def common_noise(num_samples: int, shape: Sequence[int], class_dim: int, seed: int) -> Tensor:
    r"""Noise of logits that is the same for every example, :math:`\varepsilon^{s + S/2} = -\varepsilon^s`.

    Args:
        num_samples: S.
        shape: of the logits.
        class_dim: the dimension of the classes; in all others the noise has size 1.
        seed: of the generator, which runs on the CPU so that all devices draw the same numbers.

    Example:
        >>> noise = common_noise(4, (8, 10), -1, seed=0)
        >>> noise.shape, bool((noise[2:] == -noise[:2]).all())
        (torch.Size([4, 1, 10]), True)
    """
    place = class_dim % len(shape)
    source = torch.Generator("cpu").manual_seed(seed)
    half = torch.randn(-(-num_samples // 2), shape[place], generator=source, device="cpu")
    sizes = [size if d == place else 1 for d, size in enumerate(shape)]
    return torch.cat([half, -half])[:num_samples].view(num_samples, *sizes)


def in_parts(
    function: Callable[..., Parts],
    out: Gaussian | JointGaussian,
    num_samples: int,
    generator: torch.Generator | None,
    max_elements: int,
    *others: Tensor,
) -> Parts:
    """``function(samples, *others)``, some positions at a time.

    Every part draws from a generator of its own, whose seed comes from the given one. So the backward pass can draw the
    same samples again, nothing is kept for it, and results repeat with the generator.

    Args:
        function: takes samples [num_samples, positions, classes] and the others [positions]; returns tensors
            [positions, ...].
        out: logits [..., classes].
        num_samples: samples of every position.
        generator: source of the samples, None for torch's global one.
        max_elements: largest number of sampled logits at once; a part has at least one position.
        others: tensors [...] with one entry for each position.
    """
    *shape, classes = out.shape
    mean = out.mean.reshape(-1, classes)
    spread = out.spread if isinstance(out, JointGaussian) else out.var
    if spread is None:  # known values
        spread = out.var
    tensors = [mean, spread.reshape(len(mean), *spread.shape[len(shape) :]), *(each.reshape(-1) for each in others)]
    size = max(1, _elements_of_a_part(mean, max_elements) // (num_samples * classes))
    parts = list(zip(*(tensor.split(size) for tensor in tensors), strict=True))
    seeds = _seeds(len(parts), generator, mean)
    run = _checkpointed if is_compiling() else recomputed
    results = [
        run(partial(_part, function, type(out), num_samples, seed), *part)
        for seed, part in zip(seeds, parts, strict=True)
    ]
    return tuple(torch.cat(column).unflatten(0, shape) for column in zip(*results, strict=True))


def _elements_of_a_part(mean: Tensor, max_elements: int) -> int:
    """On a CPU smaller parts are several times faster; the compiler unrolls the loop, where fewer are better."""
    if mean.device.type != "cpu" or is_compiling():
        return max_elements
    return min(max_elements, _IN_CACHE)


def _part(
    function: Callable[..., Parts],
    kind: type[Gaussian] | type[JointGaussian],
    num_samples: int,
    seed: int | None,
    mean: Tensor,
    spread: Tensor,
    *others: Tensor,
) -> Parts:
    generator = None if seed is None else torch.Generator(mean.device).manual_seed(seed)
    return function(kind.trusted(mean, spread).sample(num_samples, generator), *others)


def _checkpointed(function: Callable[..., Parts], *tensors: Tensor) -> Parts:
    """The same for torch's compiler, which repeats the numbers of the global generator."""
    result: Parts = checkpoint(function, *tensors, use_reentrant=False)
    return result


def _seeds(count: int, generator: torch.Generator | None, like: Tensor) -> list[int] | list[None]:
    """A seed for each part; none while tracing, where the numbers of a fixed seed would become constants."""
    if is_traced():
        return [None] * count
    source = {} if generator is None else {"generator": generator}
    device = like.device if generator is None else generator.device
    return torch.randint(2**62, (count,), device=device, **source).tolist()  # type: ignore[call-overload]
