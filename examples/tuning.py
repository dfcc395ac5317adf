"""What κ, the prior and the start of the noise do: one column for each, from small to large.

The same data and the same network as in the 1-D regression; every panel changes one number of the middle one.
"""

import os

import matplotlib.pyplot as plt
import torch

import mnvi

QUICK = "MNVI_QUICK" in os.environ
MIDDLE = {"kappa": 0.1, "prior_variance": 1.0, "init_rho": -3.0}
VALUES = {"kappa": (0.001, 0.1, 10.0), "prior_variance": (0.01, 1.0, 100.0), "init_rho": (-9.0, -3.0, 1.0)}
TITLES = {"kappa": "κ", "prior_variance": "prior variance", "init_rho": "ρ at the start"}

torch.manual_seed(0)
x = torch.cat([torch.empty(100).uniform_(-2, -0.5), torch.empty(100).uniform_(0.7, 2)])[:, None]
y = torch.sin(2 * x[:, 0]) + (0.05 + 0.08 * (x[:, 0] + 2)) * torch.randn(200)
grid = torch.linspace(-4, 4, 200)[:, None]

figure, panels = plt.subplots(3, 3, figsize=(10, 8), sharex=True, sharey=True, layout="constrained")
for column, (name, values) in enumerate(VALUES.items()):
    for row, value in enumerate(values):
        chosen = MIDDLE | {name: value}
        torch.manual_seed(1)
        posterior = mnvi.MultiplicativeNoise(chosen["prior_variance"], init_rho=chosen["init_rho"])
        model = mnvi.convert(mnvi.models.mlp(1, hidden=(50, 50)), posterior)
        mnvi.fit(model, (x, y), epochs=1 if QUICK else 200, kappa=chosen["kappa"], batch_size=100, progress=False)
        found, axes = mnvi.predict(model, grid), panels[row, column]
        for width, alpha in ((found.total, 0.2), (found.epistemic, 0.45)):
            axes.fill_between(
                grid[:, 0], found.mean - 1.96 * width, found.mean + 1.96 * width, alpha=alpha, color="C0", lw=0
            )
        axes.plot(grid, found.mean, color="C0")
        axes.plot(x, y, ".", color="black", ms=2)
        axes.set(title=f"{TITLES[name]} = {value:g}", ylim=(-3, 3))
        scores = mnvi.evaluate(model, (x, y))
        print(f"{TITLES[name]:15} {value:6g}: RMSE {scores['rmse']:.3f}, NLL {scores['nll']:.3f} on the training data")
figure.savefig("tuning.png", dpi=110)
