"""Rejection: hand the least certain digits to a person, and the rest has fewer errors.

The digits are scikit-learn's, 8 × 8 pixels. A threshold that validation data choose
holds for single examples, too. On so easy a task all three networks know equally well which digits are hard.
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
train, validation, test = zip(x.split([400, 400, 997]), y.split([400, 400, 997]), strict=True)

methods = {"plain network": "deterministic", "MNVI": "mnvi", "deep ensemble": "ensemble"}
figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
for title, name in methods.items():
    torch.manual_seed(1)
    model = mnvi.methods.build(name, lambda: mnvi.models.mlp(64, hidden=(50, 50), out_features=10))
    mnvi.fit(model, train, epochs=2 if QUICK else 50, progress=False)
    found = mnvi.predict(model, test[0])
    curve = mnvi.metrics.rejection_curve(found.probs, test[1])
    axes.plot(100 * curve.rejected, 100 * curve.error, label=title)
    rule = mnvi.Referral.at_error(mnvi.predict(model, validation[0]), validation[1], error=0.01)
    kept = ~mnvi.predict(model, test[0], refer=rule).refer
    wrong = (found.labels != test[1]).float()
    print(
        f"{title:14} errors {100 * wrong.mean():.1f} %; a person gets {100 * (~kept).float().mean():.0f} %, "
        f"then {100 * wrong[kept].mean():.1f} %"
    )
axes.set(xlabel="digits handed to a person [%]", ylabel="errors among the rest [%]", xlim=(0, 50), ylim=(0, None))
axes.legend()
figure.savefig("digits_rejection.png", dpi=110)
