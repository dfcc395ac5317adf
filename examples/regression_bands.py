"""1-D regression with every method: what each one says where there are no data.

The noise of the data grows from left to right, and a gap has no data. The inner band is what the network does not know
(epistemic), the outer one adds the noise of the data; both are 95 % intervals.
"""

import os

import matplotlib.pyplot as plt
import torch

import mnvi

QUICK = "MNVI_QUICK" in os.environ
METHODS = {
    "mnvi": "MNVI",
    "mfvi": "mean field",
    "dvi": "DVI",
    "mc_mfvi": "Monte Carlo mean field",
    "mc_dropout": "MC Dropout",
    "ensemble": "deep ensemble",
}

torch.manual_seed(0)
x = torch.cat([torch.empty(100).uniform_(-2, -0.5), torch.empty(100).uniform_(0.7, 2)])[:, None]
y = torch.sin(2 * x[:, 0]) + (0.05 + 0.08 * (x[:, 0] + 2)) * torch.randn(200)
grid = torch.linspace(-4, 4, 200)[:, None]


def network():
    return mnvi.models.mlp(1, hidden=(50, 50), dropout=0.05)


figure, panels = plt.subplots(2, 3, figsize=(11, 5.6), sharex=True, sharey=True, layout="constrained")
for (name, title), axes in zip(METHODS.items(), panels.flat, strict=True):
    torch.manual_seed(1)
    model = mnvi.methods.build(name, network)
    mnvi.fit(model, (x, y), epochs=2 if QUICK else 300, kappa=0.1, batch_size=100, progress=False)
    found = mnvi.predict(model, grid)
    scores = mnvi.evaluate(model, (x, y))
    outside = found.epistemic[(grid[:, 0].abs() > 3)].mean() / found.epistemic[(grid[:, 0].abs() < 2)].mean()
    print(f"{title:24} RMSE {scores['rmse']:.3f}, epistemic part outside the data {outside:.1f} times that inside")
    for width, alpha, label in ((found.total, 0.2, "total"), (found.epistemic, 0.45, "epistemic")):
        axes.fill_between(
            grid[:, 0], found.mean - 1.96 * width, found.mean + 1.96 * width, alpha=alpha, color="C0", lw=0, label=label
        )
    axes.plot(grid, found.mean, color="C0")
    axes.plot(x, y, ".", color="black", ms=3)
    axes.set(title=title, ylim=(-3, 3))
panels[0, 0].legend(loc="upper left")
figure.savefig("regression_bands.png", dpi=110)
