"""Two moons: how sure a classifier is beyond its data.

Left the plain network, then MNVI's total uncertainty, then its epistemic part: what more data would remove. The plain
network is unsure on a thin line only. MNVI doubts more the further the line is from the data; far away on either side
of it MNVI is sure, too.
"""

import os

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons

import mnvi

QUICK = "MNVI_QUICK" in os.environ
EPOCHS = 3 if QUICK else 200

torch.manual_seed(0)
points, labels = make_moons(300, noise=0.12, random_state=0)
x, y = torch.tensor(points, dtype=torch.float32), torch.tensor(labels)
across, up = torch.meshgrid(torch.linspace(-4, 5, 120), torch.linspace(-4, 4.5, 120), indexing="xy")
grid = torch.stack([across.flatten(), up.flatten()], dim=1)
near = torch.cdist(grid, x).amin(1) < 0.3
far = torch.cdist(grid, x).amin(1) > 2

plain = mnvi.models.mlp(2, hidden=(50, 50))
bayesian = mnvi.convert(mnvi.models.mlp(2, hidden=(50, 50)), mnvi.MultiplicativeNoise(prior_variance=1.0))
shown = {}
for name, model in (("plain network", plain), ("MNVI", bayesian)):
    mnvi.fit(model, (x, y), epochs=EPOCHS, kappa=0.3, progress=False)
    found = mnvi.predict(model, grid)
    close, distant = found.total[near].mean(), found.total[far].mean()
    print(f"{name:14} mean entropy near the data {close:.3f}, far away {distant:.3f} nats")
    shown[f"{name}: total"] = found.total
shown["MNVI: epistemic"] = found.epistemic

figure, panels = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True, layout="constrained")
for (title, values), axes in zip(shown.items(), panels, strict=True):
    shades = values.view_as(across).numpy()
    image = axes.imshow(shades, cmap="magma", vmin=0, vmax=0.7, extent=(-4, 5, -4, 4.5), origin="lower", aspect="auto")
    axes.scatter(*points.T, c=labels, cmap="coolwarm", s=8, edgecolors="white", linewidths=0.3)
    axes.set_title(title)
figure.colorbar(image, ax=panels, label="nats")
figure.savefig("two_moons.png", dpi=110)
