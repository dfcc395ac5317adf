"""The epoch loop that one worker runs, alone or with others.

The loss of a step is over the global batch of B images, whatever the number of workers:

    1/B Σ_b −E[log p(y_b)] + κ/N KL

Each worker contributes its share of the sum and the whole KL; gradients are averaged over workers, so the KL counts
once. All random numbers follow from (seed, epoch, step, rank): a run that resumes from a checkpoint ends with the same
weights as an uninterrupted one, bit for bit on a CPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import MultiStepLR

import mnvi
from mnvi.likelihoods import Output
from pipeline import propagation
from pipeline.data.imagesets import ImageSet, load_images
from pipeline.errors import Diverged, StudyError
from pipeline.images import devices, large_batches, objectives
from pipeline.images import job as jobs
from pipeline.images.batches import Ahead, Batches, Part, in_order
from pipeline.images.checkpoints import Checkpoints
from pipeline.images.group import Group
from pipeline.images.job import Job
from pipeline.images.loading import Loader
from pipeline.images.pace import Pace
from pipeline.images.randomness import derived_seed
from pipeline.images.synced_norm import synchronise

Epoch = dict[str, Any]
HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Position:
    """The position in training, and the results so far."""

    epoch: int = 0
    step: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # loss, nll, kl over the epoch's steps
    seconds: float = 0.0  # spent in this epoch
    history: list[Epoch] = field(default_factory=list)
    best_epoch: int = -1
    best_score: float = math.inf  # validation NLL of the best epoch
    best_error: float = math.inf
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    finished: bool = False


def run(
    job: Job,
    group: Group,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Position:
    """Trains from the last checkpoint to the end of the schedule.

    Args:
        on_epoch: called on every worker with every epoch's figures; after a restart, with all earlier ones again.
        should_stop: called on rank 0 whenever losses are read, on a CPU in each step; if it returns true, training ends
            unfinished.
    """
    training, validation = (load_images(job.data.folder, part) for part in ("train", "validation"))
    return Loop(job, group, jobs.objective(job), training, validation).run(on_epoch, should_stop)


class Loop:
    def __init__(
        self, job: Job, group: Group, objective: mnvi.Objective, training: ImageSet, validation: ImageSet
    ) -> None:
        recipe, resources = large_batches.scaled(job.cell), job.cell.resources
        self.job, self.group, self.recipe = job, group, recipe
        if recipe.sync_batch_norm:
            _check_can_synchronise(job)
            synchronise(objective)
        self.checkpoints = Checkpoints(job.state, job.home)
        self.batches = Batches(
            training,
            jobs.transform(job.cell, training=True),
            group,
            size=recipe.batch_size,
            seed=job.seed,
            examples=jobs.num_examples(job, len(training)),
            steps=jobs.steps(job),
            accumulate=resources.accumulate,
        )
        self.validation = validation
        self.kappa_over_n = objectives.kappa_over_n(job.cell)
        self.objective = objective.to(group.device)
        assert isinstance(objective.likelihood, mnvi.CategoricalLikelihood)
        self.likelihood = objective.likelihood
        self.manner = devices.manner(job.cell, group.device)
        devices.set_up(group.device)
        self.manner.lay_out(self.objective)
        if self.manner.compiled:
            self.objective.compile(dynamic=False)
        self.model = group.wrap(self.objective)
        self.optimizer = _optimizer(job, self.objective)
        self.scheduler = MultiStepLR(self.optimizer, list(recipe.milestones), recipe.gamma)
        self.half = HALF.get(resources.precision)
        self.scaler = torch.amp.GradScaler(group.device.type, enabled=self.half is torch.float16)
        self.at = Position()
        # Sums of nll and kl over the steps whose losses stay on the device until they are read.
        self.unread = torch.zeros(2, dtype=torch.float64, device=group.device)
        self.pace = Pace(group)
        self._saved = (time.monotonic(), 0)

    def run(self, on_epoch: Callable[[Epoch], None], should_stop: Callable[[], bool]) -> Position:
        self._restore()
        for epoch in self.at.history:
            on_epoch(epoch)
        with propagation.options(self.job.cell.known_method), self._reader() as ahead:
            while not self.at.finished:
                if not self._epoch(ahead, should_stop):
                    break
                on_epoch(self.at.history[-1])
        return self.at

    def _reader(self) -> Ahead | Loader:
        """Prepares images beside the steps: small ones in a thread, photographs in processes, one for each CPU."""
        cpus, recipe = self.job.cell.resources.cpus_per_worker, self.recipe
        if not self.batches.images.ragged:
            return Ahead(self.batches, cpus)
        return Loader(self.batches, recipe.augmentation or "none", str(recipe.normalisation), cpus)

    def _epoch(self, ahead: Ahead | Loader, should_stop: Callable[[], bool]) -> bool:
        """Trains one epoch; returns whether it ran to its end."""
        at, started = self.at, time.monotonic() - self.at.seconds
        resumed, ahead.waited = time.monotonic(), 0.0
        self.pace.begin()
        self.model.train()
        while at.step < self.batches.steps:
            if not self._step(ahead, should_stop):
                return False
            read = self._is_read(at.step)
            at.step += 1
            at.seconds = time.monotonic() - started
            if read and at.step < self.batches.steps:  # a loss that is not finite would have been seen
                self._save_now_and_then()
        waiting, pace = ahead.waited / (time.monotonic() - resumed), self.pace.of_all()
        rate = self.optimizer.param_groups[0]["lr"]
        self.scheduler.step()
        loss, nll, kl = (total / self.batches.steps for total in at.sums)
        validation_nll, validation_error = self._validate()
        at.history.append(
            {
                "epoch": at.epoch + 1,
                "loss": loss,
                "nll": nll,
                "kl": kl,
                "validation_nll": validation_nll,
                "validation_error": validation_error,
                "learning_rate": rate,
                "seconds": time.monotonic() - started,
                "waiting": waiting,  # share of the steps' time that they wait for images
                "workers": pace,
            }
        )
        self._keep_best(validation_nll, validation_error)
        at.epoch, at.step, at.sums, at.seconds = at.epoch + 1, 0, [0.0, 0.0, 0.0], 0.0
        patience = self.recipe.patience
        out_of_patience = patience is not None and at.epoch - at.best_epoch >= patience
        at.finished = at.epoch >= self.recipe.epochs or out_of_patience
        self._save()
        return True

    def _step(self, ahead: Ahead | Loader, should_stop: Callable[[], bool]) -> bool:
        at, rank = self.at, self.group.rank
        parts = ahead.parts(at.epoch, at.step)
        self.pace.count(parts)
        torch.manual_seed(derived_seed(self.job.seed, "noise", at.epoch, at.step, rank))
        self.optimizer.zero_grad(set_to_none=True)
        nll = kl = self.unread.new_zeros(())
        for i, part in enumerate(parts):
            with self._without_sending(i + 1 < len(parts)), self._compiled_if_whole():
                part_nll, kl = self._backward(part, len(parts))
                nll = nll + part_nll.double()
        self.unread += torch.stack((nll, kl.double()))
        if self._is_read(at.step) and not self._read(should_stop):
            return False
        self._update()
        return True

    def _is_read(self, step: int) -> bool:
        """Whether the losses are read in this step: all workers do it together."""
        return (step + 1) % self.manner.read_every == 0 or step + 1 == self.batches.steps

    def _read(self, should_stop: Callable[[], bool]) -> bool:
        """Adds the losses since the last look to the epoch's; returns whether training goes on."""
        self.pace.sample()
        at, stop = self.at, float(self.group.first and should_stop())
        nll, stops = self.group.sum(torch.stack((self.unread[0], self.unread.new_tensor(stop)))).tolist()
        if stops:
            return False
        nll, kl = nll / self.group.size, float(self.unread[1])
        self.unread.zero_()
        loss = nll + self.kappa_over_n * kl
        if not math.isfinite(loss):
            raise Diverged(self._diverged(f"the loss became {loss} in epoch {at.epoch + 1}, step {at.step + 1}"))
        at.sums = [total + new for total, new in zip(at.sums, (loss, nll, kl), strict=True)]
        return True

    def _backward(self, part: Part, parts: int) -> tuple[Tensor, Tensor]:
        device = self.group.device.type
        with torch.autocast(device, self.half) if self.half else nullcontext():
            terms = self.model(self.manner.laid_out(part.images), part.labels)
        nll = part.weight * terms.nll
        self.scaler.scale(nll + self.kappa_over_n / parts * terms.kl).backward()
        return nll.detach(), terms.kl.detach()

    def _update(self) -> None:
        if self.recipe.clip is not None:
            self.scaler.unscale_(self.optimizer)
            parameters = [parameter for parameter in self.objective.parameters() if parameter.grad is not None]
            torch.nn.utils.clip_grads_with_norm_(parameters, self.recipe.clip, devices.largest_gradient(parameters))
        factor = large_batches.warmth(self.job.cell, self.at.epoch, self.at.step, self.batches.steps)
        with large_batches.warmed(self.optimizer, factor):
            self.scaler.step(self.optimizer)
        self.scaler.update()

    def _without_sending(self, more: bool) -> AbstractContextManager[None]:
        """Workers exchange gradients once per step, with its last part."""
        if more and isinstance(self.model, DistributedDataParallel):
            return self.model.no_sync()
        return nullcontext()

    def _compiled_if_whole(self) -> AbstractContextManager[None]:
        """The smaller batch that ends an epoch runs as it is: the compiler would take minutes for its size."""
        images = len(self.batches.rows(self.at.epoch, self.at.step))
        whole = images == min(self.batches.size, self.batches.examples)
        return torch.compiler.set_stance("default" if whole else "force_eager")

    @torch.no_grad()
    def _validate(self) -> tuple[float | None, float | None]:
        """Mean negative log-likelihood and error on the validation images; the noise is the same in every epoch."""
        if not len(self.validation):
            return None, None
        self.group.copy_buffers(self.objective)
        self.objective.eval()
        torch.manual_seed(derived_seed(self.job.seed, "validation", self.group.rank))
        totals = torch.zeros(3, dtype=torch.float64, device=self.group.device)  # nll, wrong, non-finite batches
        count = min(self.job.limits.validation_examples or len(self.validation), len(self.validation))
        rows = self.group.share(torch.arange(count))
        transform = jobs.transform(self.job.cell, training=False)
        for images, labels, _ in in_order(self.validation, rows, transform, self.group.device):
            out = self.objective.net(self.manner.laid_out(images))
            if not _finite(out):
                totals[2] += 1
                continue
            prediction = self.likelihood.predictive(out)
            totals[0] -= prediction.log_prob(labels).double().sum()
            totals[1] += (prediction.probs.argmax(-1) != labels).sum()
        nll, error, unanswered = (self.group.sum(totals) / count).tolist()
        if unanswered:  # no later loss would reveal it; every worker must raise
            raise Diverged(
                self._diverged(f"outputs for validation images are not finite after epoch {self.at.epoch + 1}")
            )
        return nll, error

    def _keep_best(self, nll: float | None, error: float | None) -> None:
        """Keeps the weights if they are the best by ``selection``; without validation images the last are the best."""
        at = self.at
        if nll is not None and error is not None:
            by_error = self.recipe.selection == "error"
            new, old = ((error, nll), (at.best_error, at.best_score)) if by_error else ((nll,), (at.best_score,))
            if at.best_weights and new >= old:
                return
            at.best_score, at.best_error = nll, error
        at.best_epoch = at.epoch + 1
        weights = self.objective.net.state_dict()
        at.best_weights = {name: value.detach().cpu().clone() for name, value in weights.items()}

    def _diverged(self, what: str) -> str:
        saved = self.checkpoints.paths()
        last = f"the last good checkpoint is {saved[0]}" if saved else "there is no checkpoint yet"
        name = self.recipe.name
        return (
            f"{self.job.cell.name}, seed {self.job.seed}: {what}; {last}. Lower experiments.{name}.learning_rate or "
            f"experiments.{name}.clip"
        )

    def _save_now_and_then(self) -> None:
        when, step = self._saved
        due = self.at.step - step >= self.job.checkpoint_steps
        if due or time.monotonic() - when >= self.job.checkpoint_seconds:
            self._save()

    def _save(self) -> None:
        self._saved = time.monotonic(), self.at.step
        if not self.group.first:
            return
        state = {
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "rng": torch.get_rng_state(),
            "position": vars(self.at),
        }
        self.checkpoints.save(state, self.at.epoch, self.at.step)

    def _restore(self) -> None:
        path = self.group.from_first(self.checkpoints.newest() if self.group.first else None)
        if path is None:
            return
        state = self.checkpoints.read(path)
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["rng"])
        self.at = Position(**state["position"])
        self._saved = time.monotonic(), self.at.step


def _check_can_synchronise(job: Job) -> None:
    """Workers communicate in every batch norm: all need the same number of parts, and a graph that may wait."""
    resources = job.cell.resources
    for key, value, fits in (("accumulate", resources.accumulate, 1), ("compile", resources.compile, False)):
        if value != fits and (key, value) != ("compile", "auto"):  # auto then does not compile
            raise StudyError(
                f"experiments.{job.cell.experiment.name}.sync_batch_norm: true does not go with resources.{key}: "
                f"{value}; write {key}: {str(fits).lower()}"
            )


def _finite(out: Output) -> bool:
    if isinstance(out, mnvi.Gaussian | mnvi.JointGaussian):
        parts = [out.mean, out.var]
    else:
        parts = [out.values if isinstance(out, mnvi.Samples) else out]
    return all(bool(part.isfinite().all()) for part in parts)


def _optimizer(job: Job, objective: mnvi.Objective) -> Optimizer:
    recipe, decay = large_batches.scaled(job.cell), objectives.weight_decay(job.cell)
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(
            objective.parameters(),
            recipe.learning_rate,
            momentum=recipe.momentum,
            weight_decay=decay,
            nesterov=recipe.nesterov,
            fused=True,
        )
    largest = recipe.optimizer == "amsgrad"
    return torch.optim.Adam(
        objective.parameters(), recipe.learning_rate, weight_decay=decay, amsgrad=largest, fused=True
    )
