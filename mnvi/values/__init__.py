"""Values that go where a tensor goes: Gaussians, joint Gaussians, samples."""

from mnvi.values.gaussian import Gaussian
from mnvi.values.joint import JointGaussian
from mnvi.values.samples import Samples

__all__ = ["Gaussian", "JointGaussian", "Samples"]
