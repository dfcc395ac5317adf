"""DVI: a network with posteriors, run on full covariances."""

from __future__ import annotations

from torch import Tensor, nn

from mnvi.moments._torch import ConvNd
from mnvi.values.joint import JointGaussian


class DVI(nn.Module):
    """Deterministic variational inference with full covariances (Wu et al., 2019): the output is a ``JointGaussian``.

    The network keeps its weights, posteriors and KL; this wrapper only sends a :class:`mnvi.JointGaussian` through it
    instead of a :class:`mnvi.Gaussian`. Weights are independent under every posterior. Time and memory grow with the
    square of the widest layer; the first hidden layer costs no more than without covariances, because its units are
    independent. The diagonal variant, dDVI, is the network without this wrapper.

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
            if isinstance(module, ConvNd):
                raise TypeError(
                    f"DVI: layer {name!r} is a {type(module).__name__}; covariances between all units are for fully "
                    "connected networks. Use the network without DVI, which keeps only variances"
                )
        if not any(hasattr(module, "posterior") for module in net.modules()):
            raise ValueError("DVI: no layer of this network has a posterior; give it one with mnvi.convert")
        self.net = net

    def forward(self, x: Tensor) -> JointGaussian:
        out: JointGaussian = self.net(JointGaussian.trusted(x))
        return out
