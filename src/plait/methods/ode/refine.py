"""A few steps of AdamW after the path, and what keeps them near it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from plait.methods.base import Known
from plait.methods.ode.calibration import Calibration, mean
from plait.methods.ode.flat import Layout
from plait.methods.watch import Blind, Watch
from plait.tensors import Tensor, torch

ANCHOR, TRUST, WORSE, EVERY = 1e-3, 1e-3, 0.02, 10
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class Refine:
    """`steps` steps of AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101; betas 0.9 and 0.999, weight decay 0.01)
    on the mean loss of all tasks.

    batch: examples a step in all, an equal number of each task, drawn anew for every step; 0: all.
    guarded: with (1e-3 / 2) ||theta - start||^2 added to the loss, theta kept within 1e-3 ||start|| of the start, and
        of the points after every 10 steps (and the start itself) the one returned that has the lowest mean loss while
        no task's loss is more than 0.02 above that at the start. Else the last point.

    Cost: a gradient on `batch` examples a step, and a loss on all of them every 10 steps. Memory: 7 buffers.
    """

    layout: Layout
    calibration: Calibration
    steps: int
    rate: float
    batch: int
    seed: int
    guarded: bool = True

    def follow(self, theta: Tensor, watch: Watch | None = None) -> tuple[Tensor, Known]:
        """The refined weights in a new buffer, and the trace. `theta` stays."""
        watch = watch or Blind()
        here, best = theta.clone(), theta.clone()
        gradient = self.layout.empty()
        here.grad = gradient
        adam = torch.optim.AdamW([here], lr=self.rate, foreach=False)
        held = watch.kept()
        if held is None:
            losses = self.calibration.losses(theta, "before the refinement")
            trace: Known = {
                "steps": [0],
                "losses": {task: [loss] for task, loss in losses.items()},
                "taken": 0,
            }
            done = 0
        else:
            note, tensors = held
            trace, done = note["trace"], note["done"]
            _take_up(tensors, here, best, adam, done)
            del held, tensors
        first = {task: row[0] for task, row in trace["losses"].items()}
        lowest = mean(
            {task: row[trace["steps"].index(trace["taken"])] for task, row in trace["losses"].items()}
        )
        radius = TRUST * float(theta.double().norm())
        for number in range(done + 1, self.steps + 1):
            where = f"in step {number} of the refinement"
            losses = self._batch(number).gradient(here.detach(), gradient, where)
            if self.guarded:
                gradient.add_(here, alpha=ANCHOR).sub_(theta, alpha=ANCHOR)
            adam.step()
            if self.guarded:
                _keep_near(here, theta, radius)
            watch.tell(number, self.steps, mean(losses))
            if number % EVERY == 0 or number == self.steps:
                losses = self.calibration.losses(here.detach(), where)
                trace["steps"].append(number)
                for task, loss in losses.items():
                    trace["losses"][task].append(loss)
                better = mean(losses) < lowest and all(losses[t] <= first[t] + WORSE for t in first)
                if better or not self.guarded:
                    best.copy_(here)
                    lowest, trace["taken"] = mean(losses), number
            if number < self.steps and watch.due():
                moments = {name: adam.state[here][name] for name in MOMENTS}
                watch.keep({"trace": trace, "done": number}, {"here": here.detach(), "best": best, **moments})
        return best, trace

    def _batch(self, number: int) -> Calibration:
        if not self.batch:
            return self.calibration
        each = max(self.batch // len(self.calibration.tasks), 1)
        draw = int.from_bytes(sha256(f"{self.seed} {number}".encode()).digest()[:6], "little")
        return Calibration(self.calibration.problem.sample(each, draw), self.layout)


def _take_up(
    tensors: Mapping[str, Tensor], here: Tensor, best: Tensor, adam: torch.optim.AdamW, done: int
) -> None:
    """Write what a stopped run had come to after `done` steps into the buffers and the optimizer."""
    here.copy_(tensors["here"])
    best.copy_(tensors["best"])
    moments = {name: tensors[name].to(here.device, copy=True) for name in MOMENTS}
    adam.state[here] = {"step": torch.tensor(float(done)), **moments}


def _keep_near(here: Tensor, start: Tensor, radius: float) -> None:
    """Pull `here` back onto the ball around `start`, in place."""
    away = here - start
    length = float(away.double().norm())
    if length > radius:
        here.copy_(start).add_(away, alpha=radius / length)
