"""Rejection on MNIST: hand the least certain digits to a person, and the rest has fewer errors.

LeNet learns from 1,000 digits and reads 10,000 others. On the left the errors among the digits that it keeps; on the
right those that MNVI hands over first, with what it took them for. The threshold is chosen so that 1 % of the
validation digits below it are wrong; on the test digits it is a little more.
"""

import os

import matplotlib.pyplot as plt
import numpy as np
import torch

import mnvi
from pipeline.data.image_arrays import find_images
from pipeline.params import Dataset

QUICK = "MNVI_QUICK" in os.environ  # random images, to try the code

if QUICK:
    sizes, random = {"train": 64, "test": 48}, np.random.default_rng(0)
    mnist = {f"{part}_images": random.integers(0, 256, (count, 1, 28, 28)) for part, count in sizes.items()}
    mnist |= {f"{part}_labels": np.arange(count) % 10 for part, count in sizes.items()}
else:
    mnist = find_images(Dataset(name="mnist", kind="images")).arrays


def digits(part, rows):
    images = torch.tensor(mnist[f"{part}_images"][rows], dtype=torch.float32) / 255
    return (images - 0.13) / 0.31, torch.tensor(mnist[f"{part}_labels"][rows])


train, test = digits("train", slice(0, None, 60)), digits("test", slice(None))  # their writers are in order
validation = digits("train", slice(7, None, 30))
methods = {
    "plain network": ("deterministic", {}),
    "ensemble of three": ("ensemble", {"num_members": 3}),
    "MNVI": ("mnvi", {"prior_variance": 0.01}),
}
figure = plt.figure(figsize=(10, 4), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(5, 4))
curves = left.subplots()
for title, (name, settings) in methods.items():
    torch.manual_seed(1)
    model = mnvi.methods.build(name, mnvi.models.lenet, **settings)
    mnvi.fit(model, train, epochs=1 if QUICK else 10, learning_rate=1e-3, kappa=0.01, progress=False)
    rule = mnvi.Referral.at_error(mnvi.predict(model, validation[0]), validation[1], error=1.0 if QUICK else 0.01)
    found = mnvi.predict(model, test[0], refer=rule)
    curve = mnvi.metrics.rejection_curve(found.probs, test[1])
    curves.plot(100 * curve.rejected, 100 * curve.error, label=title)
    wrong, refer = (found.labels != test[1]).float(), found.refer
    print(
        f"{title:17} {100 * wrong.mean():.1f} % wrong, NLL {mnvi.metrics.nll(found.probs, test[1]):.3f}; a person gets "
        f"{100 * refer.float().mean():.0f} %, then {100 * wrong[~refer].mean():.1f} % of the rest are wrong"
    )
curves.set(xlabel="digits handed to a person [%]", ylabel="errors among the rest [%]", xlim=(0, 30), ylim=(0, None))
curves.legend()
for place, axes in zip(found.total.argsort(descending=True), right.subplots(3, 4).flat, strict=False):
    axes.imshow(test[0][place, 0].numpy(), cmap="gray_r")
    axes.set_title(f"{found.labels[place]}, is {test[1][place]}", fontsize=9)
    axes.set_axis_off()
figure.savefig("mnist_rejection.png", dpi=110)
