"""The paper's networks and posteriors, in a state that training could leave behind."""

import torch
from torch import nn

import mnvi

MODELS = {
    "lenet": (mnvi.models.lenet, (1, 28, 28)),
    "all_cnn": (mnvi.models.all_cnn, (3, 16, 16)),
    "resnet18": (mnvi.models.resnet18, (3, 16, 16)),
    "resnet18 imagenet": (lambda: mnvi.models.resnet18(10, "imagenet"), (3, 32, 32)),
    "mlp": (lambda: mnvi.models.mlp(13), (13,)),
}
POSTERIORS = {
    "multiplicative": mnvi.MultiplicativeNoise(prior_variance=1.0),
    "mean field": mnvi.MeanField(prior_variance=1.0, init_log_var=-6.0),
    "shared": mnvi.SharedMeanField(prior_variance=1.0, init_log_var=-6.0),
}


def trained(net: nn.Module, posterior: mnvi.Posterior, shape: tuple[int, ...]) -> nn.Module:
    """A converted network whose posterior differs from unit to unit, and whose batch norms have seen data."""
    model = mnvi.convert(net, posterior)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("rho", "log_var")):
                parameter += torch.randn_like(parameter)
        disturb_batch_norms(model)
        for _ in range(2):
            model.train()(torch.randn(4, *shape) + 0.5)
    return model.eval()


def disturb_batch_norms(model: nn.Module) -> None:
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                if module.affine:
                    module.weight.normal_()  # negative scales too
                    module.bias.normal_()
                if module.running_var is not None:
                    module.running_mean.normal_()
                    module.running_var.uniform_(0.5, 2.0)
