"""Out of distribution: a network that has seen the digits 0 to 7 meets 8 and 9.

It cannot name them, but it can be unsure. The histograms show the total uncertainty of known and foreign digits; the
AUROC is the chance that a foreign digit is less certain than a known one.
"""

import os

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import mnvi

QUICK = "MNVI_QUICK" in os.environ

torch.manual_seed(0)
images, digits = load_digits(return_X_y=True)
order = torch.randperm(len(digits))
x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(digits)[order]
known = y < 8
train = x[known][:800], y[known][:800]
test, foreign = x[known][800:], x[~known]

figure, panels = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True, layout="constrained")
for (title, name), axes in zip({"plain network": "deterministic", "MNVI": "mnvi"}.items(), panels, strict=True):
    torch.manual_seed(1)
    model = mnvi.methods.build(name, lambda: mnvi.models.mlp(64, hidden=(50, 50), out_features=8))
    mnvi.fit(model, train, epochs=2 if QUICK else 50, progress=False)
    inside, outside = mnvi.predict(model, test).total, mnvi.predict(model, foreign).total
    auroc = mnvi.metrics.auroc(inside, outside)
    print(f"{title:14} AUROC {auroc:.3f}; median entropy {inside.median():.4f} known, {outside.median():.4f} foreign")
    for values, label in ((inside, "digits 0 to 7"), (outside, "digits 8 and 9")):
        axes.hist(values.numpy(), bins=30, range=(0, 2.1), density=True, alpha=0.6, label=label)
    axes.set(title=f"{title}: AUROC {auroc:.3f}", xlabel="entropy [nats]", yscale="log")
panels[0].legend()
figure.savefig("foreign_digits.png", dpi=110)
