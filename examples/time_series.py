"""A time series with an LSTM: the next value, and how sure the network is.

The network sees thirty steps and predicts the next. In the last part of the test series the rhythm changes. The network
has never seen the new one, and its error grows much more than its doubt: do not count on a network to notice such a
change by itself.
"""

import os

import matplotlib.pyplot as plt
import torch
from torch import nn

import mnvi

QUICK = "MNVI_QUICK" in os.environ
STEPS = 30


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 16, batch_first=True)
        self.head = nn.Linear(16, 2)  # mean and log-variance of the next value

    def forward(self, x):  # [batch, steps, 1]
        states, _ = self.lstm(x)
        return self.head(states[:, -1])


def windows(series):
    cut = series.unfold(0, STEPS + 1, 1)
    return cut[:, :STEPS, None], cut[:, STEPS]


torch.manual_seed(0)
time = torch.arange(900.0)
series = torch.sin(0.25 * time) + 0.5 * torch.sin(0.09 * time) + 0.1 * torch.randn(900)
changed = time > 800
series[changed] = 1.8 * torch.sign(torch.sin(0.6 * time[changed])) + 0.1 * torch.randn(int(changed.sum()))
train, test = windows(series[:600]), windows(series[600:])

model = mnvi.convert(Forecaster(), mnvi.MultiplicativeNoise(prior_variance=1.0))
mnvi.fit(model, train, epochs=1 if QUICK else 20, kappa=0.1, progress=False)
found = mnvi.predict(model, test[0])
now = time[600 + STEPS :]
usual, unusual = now <= 800, now > 800
for name, part in (("usual rhythm", usual), ("new rhythm", unusual)):
    off = (found.mean - test[1])[part].square().mean().sqrt()
    total, epistemic = found.total[part].mean(), found.epistemic[part].mean()
    print(f"{name:13} RMSE {off:.2f}, predicted: total {total:.2f}, epistemic {epistemic:.2f}")

figure, axes = plt.subplots(figsize=(10, 3.5), layout="constrained")
for width, alpha, label in ((found.total, 0.2, "total"), (found.epistemic, 0.45, "epistemic")):
    axes.fill_between(
        now, found.mean - 1.96 * width, found.mean + 1.96 * width, alpha=alpha, color="C0", lw=0, label=label
    )
axes.plot(now, found.mean, color="C0", label="mean")
axes.plot(now, test[1], ".", color="black", ms=3, label="series")
axes.axvline(800, color="C3", ls="--", label="the rhythm changes")
axes.set(xlabel="step", ylabel="value")
figure.legend(loc="outside upper center", ncols=5)
figure.savefig("time_series.png", dpi=110)
