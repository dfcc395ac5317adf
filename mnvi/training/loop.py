"""The epochs of a training, and its state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnvi.elbo import Objective
from mnvi.training.checkpoints import State, generator_states, restore_generators, save
from mnvi.training.fitted import Row
from mnvi.training.loaders import count_batches, moved
from mnvi.training.predicting import read
from mnvi.training.progress import Display
from mnvi.training.scores import scores_of

_SEED_OF_VALIDATION = 0


class Loop:
    """Optimises an objective epoch by epoch; its state after an epoch fits in a file.

    Args:
        objective: network and loss.
        optimizer: of the objective's parameters.
        batches: training data.
        held_out: validation data, if any.
        device: where the objective is.
        clip: largest norm of the gradient.
        lower: dtype of mixed precision, or None.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        batches: Iterable[Any],
        held_out: Iterable[Any] | None,
        device: torch.device,
        *,
        clip: float | None,
        lower: torch.dtype | None,
    ) -> None:
        self.objective, self.optimizer, self.batches, self.held_out = objective, optimizer, batches, held_out
        self.device, self.clip, self.lower = device, clip, lower
        self.scaler = torch.amp.GradScaler(device.type, enabled=lower is torch.float16)
        self.rates = [group["lr"] for group in optimizer.param_groups]
        found = {
            "batches": getattr(batches, "generator", None),
            "likelihood": getattr(objective.likelihood, "generator", None),
        }
        self.generators = {name: value for name, value in found.items() if value is not None}
        self.epoch = 0  # finished ones
        self.history: list[Row] = []
        self.best: dict[str, Tensor] | None = None

    @property
    def best_epoch(self) -> int:
        """The epoch with the lowest validation NLL, counted from 1; the last one without validation data."""
        if self.held_out is None:
            return self.epoch
        return min(range(len(self.history)), key=lambda i: self.history[i]["validation_nll"]) + 1

    def run(
        self,
        epochs: int,
        patience: int | None,
        path: Path | None,
        settings: State,
        shown: Display,
        callback: Callable[[Row], object] | None,
    ) -> bool:
        """Train up to a number of epochs. Return True if the validation NLL stopped improving before that."""
        while self.epoch < epochs:
            if patience is not None and self.history and self.epoch - self.best_epoch >= patience:
                return True
            if path is not None:
                save(path, {"settings": settings, **self.state_dict()})
            row = self._pass(epochs, shown)
            self.epoch += 1
            self.history.append(row)
            if self.held_out is not None and self.best_epoch == self.epoch:
                self.best = {name: value.detach().clone() for name, value in self.objective.state_dict().items()}
            shown.epoch(row)
            if callback is not None:
                callback(row)
        if path is not None:
            save(path, {"settings": settings, **self.state_dict()})
        return False

    def finish(self) -> int:
        """Take the weights of the best epoch; returns its number."""
        if self.best is not None:
            self.objective.load_state_dict(self.best)
        self.objective.eval()
        return self.best_epoch

    def _pass(self, epochs: int, shown: Display) -> Row:
        """One epoch: a pass over the training data, then the scores on the validation data."""
        self.objective.train()
        count = count_batches(self.batches)
        sums, examples = torch.zeros(3, dtype=torch.float64, device="cpu"), 0
        for i, (x, y) in enumerate(self.batches):
            self._set_rate((self.epoch + (i / count if count else 0.0)) / epochs)
            terms = self._step(moved(x, self.device), y.to(self.device, non_blocking=True))
            sums += len(y) * torch.stack([term.detach().double().cpu() for term in terms])
            examples += len(y)
            shown.batch()
        loss, nll, kl = (sums / examples).tolist()
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"fit: the loss became {loss} in epoch {self.epoch + 1}; scale inputs and targets to about 1, lower "
                f"learning_rate={self.rates[0]:g}, or set clip=1.0"
            )
        row = {"epoch": self.epoch + 1, "loss": loss, "nll": nll, "kl": kl}
        if self.held_out is not None:
            found = read(self.objective.net, self.objective.likelihood, self.held_out, self.device, _SEED_OF_VALIDATION)
            row |= {f"validation_{name}": value for name, value in scores_of(*found).items()}
        return row

    def _step(self, x: Any, y: Tensor) -> Any:
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, self.lower, enabled=self.lower is not None):
            terms = self.objective(x, y, self.epoch)
        self.scaler.scale(terms.loss).backward()
        if self.clip is not None:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.objective.parameters(), self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return terms

    def _set_rate(self, share: float) -> None:
        """Half a cosine from the initial learning rate to 0."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * share))

    def state_dict(self) -> State:
        """Everything that the rest of the training depends on."""
        return {
            "epoch": self.epoch,
            "history": self.history,
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "best": self.best,
            "generators": generator_states(self.generators, self.device),
        }

    def load_state_dict(self, state: State) -> None:
        """Resume from a state."""
        self.epoch, self.history = state["epoch"], list(state["history"])
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        if state["best"] is not None:
            self.best = {name: value.to(self.device) for name, value in state["best"].items()}
        restore_generators(state["generators"], self.generators, self.device)
