"""A trained network's predictions for images: probabilities, and aleatoric and epistemic uncertainty."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import mnvi
from mnvi.likelihoods import Output
from mnvi.metrics import expected_entropy, mutual_information, predictive_entropy
from pipeline import compiler
from pipeline.data.imagesets import ImageSet
from pipeline.images.batches import EVALUATION_BATCH, Transform, in_order
from pipeline.images.objectives import LOGIT_SAMPLES
from pipeline.images.randomness import derived_seed

REPEATS = 20  # timings per batch, at most
LONGEST = 5.0  # seconds that timing may take: large photos repeat fewer times
# Compiling a network takes a minute. It pays if an evaluation has at least this many floating-point operations.
WORTH_COMPILING = 5e12


@dataclass(frozen=True)
class Predictions:
    """One row per image; entropies in nats. total = aleatoric + epistemic."""

    probs: Tensor  # [N, C] float64
    labels: Tensor  # [N]
    total: Tensor  # [N]
    aleatoric: Tensor  # [N]
    epistemic: Tensor  # [N]

    @property
    def wrong(self) -> Tensor:
        return self.probs.argmax(-1) != self.labels

    def tensors(self) -> dict[str, Tensor]:
        return asdict(self)


@torch.inference_mode()
def predict(
    net: nn.Module, images: ImageSet, rows: Tensor, transform: Transform, device: torch.device, seed: int
) -> Predictions:
    """Predictions in float64, in which the probability of an unlikely class does not underflow."""
    torch.manual_seed(derived_seed(seed, "evaluation"))
    net.eval()
    parts = []
    for pixels, labels, _ in in_order(images, rows, transform, device):
        sampled = sampled_probabilities(net(pixels)).cpu()
        probs = sampled.mean(0)
        aleatoric, epistemic = expected_entropy(sampled), mutual_information(sampled)
        parts.append((probs, labels.cpu(), predictive_entropy(probs), aleatoric, epistemic))
    return Predictions(*(torch.cat(column) for column in zip(*parts, strict=True)))


def sampled_probabilities(out: Output) -> Tensor:
    """Sampled probabilities, [S, N, C] float64; S is 1 for a network without epistemic uncertainty."""
    if isinstance(out, Tensor):
        logits = out.unsqueeze(0)
    elif isinstance(out, mnvi.Samples):
        logits = out.values
    else:
        logits = out.sample(LOGIT_SAMPLES)
    return logits.double().softmax(-1)


@torch.inference_mode()
def milliseconds(net: nn.Module, images: ImageSet, transform: Transform, device: torch.device) -> float:
    """Time from a batch of 100 images to their probabilities: the shortest of all repeats, because other load on the
    machine only adds time.
    """
    rows = torch.arange(EVALUATION_BATCH) % len(images)
    batch = transform(images.take(rows), torch.Generator()).to(device)
    likelihood = mnvi.CategoricalLikelihood(num_samples=LOGIT_SAMPLES)
    net.eval()
    times = []
    for _ in range(REPEATS + 2):
        began = time.perf_counter()
        likelihood.predictive(net(batch)).probs.cpu()
        times.append(time.perf_counter() - began)
        if len(times) > 2 and sum(times) > LONGEST:
            break
    return 1000 * min(times[2:])  # the first ones warm up


@torch.inference_mode()
def optimised(net: nn.Module, images: int, example: Tensor) -> nn.Module:
    """The network as :func:`mnvi.optimize_for_inference` makes it; compiled if that saves more time than it takes.

    The amount of work decides, not its measured duration, so that the same evaluation gives the same result on a slow
    and a fast machine.

    Args:
        images: number of images to predict.
        example: a batch, ready for the network.
    """
    with FlopCounterMode(display=False) as counter:
        net(example)
    work = counter.get_total_flops() / len(example) * images
    return mnvi.optimize_for_inference(net, compile=work > WORTH_COMPILING and compiler.available())
