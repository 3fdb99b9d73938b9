"""ODE-M: small steps towards the expert, steered by losses on calibration examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import fsum
from typing import Any, ClassVar

from plait.errors import UsageError, VerificationError
from plait.methods.base import Facts, Known, MemberFacts, ModelMethod
from plait.methods.groups import GRANULARITIES
from plait.methods.ode.calibration import Calibration, calibrate
from plait.methods.ode.flat import Layout
from plait.methods.ode.goal import Goal, end_of
from plait.methods.ode.guarded import Guarded
from plait.methods.ode.path import INTEGRATORS, Path
from plait.methods.ode.refine import Refine
from plait.methods.ranges import at_least, choice, finite, share
from plait.methods.watch import Counted, Watch
from plait.tensors import Tensor

VARIANTS = ("paper", "released", "control_refine", "control_adamw")
ONLY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("calibration", "granularity", "integrator", "budget", "line"), ("paper",)),
    "h": ("paper", "released"),
    **dict.fromkeys(("refine", "rate", "batch"), VARIANTS[1:]),
}
"""Options that only some of the variants have."""
OWN_STEP = {"released": 0.01}
OWN_SAMPLES = {"paper": 1024}
OWN_RATE = {"control_adamw": 1e-5}


@dataclass(frozen=True)
class OdeM(ModelMethod):
    """The path theta(t) from the merged model so far, t = 0, towards the expert, t = 1, as far as t_k =
    w_k / sum_i w_i (1/k where all weights are equal), in steps of h (arXiv 2605.19409):

        d theta / dt = u - (1 - gamma) p g / ||g||^2,   u = (expert - theta) / (1 - t),  p = <g, u>
        gamma = 1 if p <= 0 else clip(budget / p, 0, 1)

    with g the gradient of the mean loss of the calibration tasks. Where gamma is 1 at every step the result is the
    running average, weighted by the w_i. The first member is the model, bit for bit.

    variant: "paper" as above; "released": a ceiling for each task and refinement at the end, as in the authors'
        program (see `ode.guarded`, `ode.refine`). Two controls: "control_refine" is the running average, refined
        in the same way; "control_adamw" the running average and then plain AdamW.
    h: step size; 0: 0.05, or 0.01 for released.
    samples: calibration examples in all, an equal number of each task; 0: 1024, or 2048 but for paper.
    calibration: "seen": all tasks so far; "new": the one that comes in. But for paper always all.
    granularity: what has an inner product p of its own: the whole "model", each "layer", or each "tensor".
    integrator: "euler", "heun" or "rk4", of 1, 2 and 4 gradients a step.
    budget: how much the loss may rise over the whole way; none: loss(expert) - loss(model so far). 0 lets it rise
        nowhere.
    target: where the path leads: the "expert", or what the method `end` makes of all members so far ("merged"), with
        t_end 1. The sums of that method are kept beside the model.
    t_end: how far to go; none: t_k. 0 leaves the model as it is, 1 goes all the way.
    line: points of the straight line at which losses are recorded too, at one loss each; 0: none.
    refine: steps of AdamW on the model that is deployed, but for paper; 0: none. The next path starts from the
        unrefined model.
    rate: of these; 0: 1e-6, or 1e-5 for control_adamw. batch: examples a step in all; 0: all.
    seed: of all that is drawn.
    """

    variant: str = "paper"
    h: float = 0.0
    samples: int = 0
    calibration: str = "seen"
    granularity: str = "model"
    integrator: str = "euler"
    budget: float | None = None
    target: str = "expert"
    end: Any = "covariance"
    t_end: float | None = None
    line: int = 0
    refine: int = 80
    rate: float = 0.0
    batch: int = 128
    seed: int = 0

    facts: ClassVar[Facts] = Facts(
        summary="small steps towards the expert, without what raises the loss too much",
        family="calibrated",
        removal="refold",
        data="labelled all",
        order=True,
        memory="1 value in fp32",
        cost="1 gradient a step",
        paper="arXiv 2605.19409",
    )

    def __post_init__(self) -> None:
        if self.target == "merged" or not isinstance(self.end, str):
            object.__setattr__(self, "end", end_of(self.end))
        if self.variant == "paper" and self.calibration == "new":
            object.__setattr__(self, "facts", replace(type(self).facts, data="labelled new"))

    def resolved(self) -> OdeM:
        """With the variant's own numbers where 0 stands for them."""
        return replace(
            self,
            h=self.h or OWN_STEP.get(self.variant, 0.05),
            samples=self.samples or OWN_SAMPLES.get(self.variant, 2048),
            rate=self.rate or OWN_RATE.get(self.variant, 1e-6),
        )

    def check(self) -> None:
        choice("variant", self.variant, VARIANTS)
        share("h", self.h)
        for name, least in (("samples", 0), ("line", 0), ("refine", 0), ("batch", 0), ("seed", 0)):
            at_least(name, getattr(self, name), least)
        choice("calibration", self.calibration, ("seen", "new"))
        choice("granularity", self.granularity, GRANULARITIES)
        choice("integrator", self.integrator, tuple(INTEGRATORS))
        choice("target", self.target, ("expert", "merged"))
        end_of(self.end)
        finite("rate", self.rate)
        at_least("rate", self.rate, 0)
        if self.budget is not None:
            finite("budget", self.budget)
            at_least("budget", self.budget, 0)
        if self.t_end is not None:
            share("t_end", self.t_end)
        self._check_variant()

    def _check_variant(self) -> None:
        untouched = OdeM(variant=self.variant)
        usual = [untouched, untouched.resolved(), replace(untouched, refine=0)]
        for name, variants in ONLY.items():
            value = getattr(self, name)
            if self.variant not in variants and value not in [getattr(one, name) for one in usual]:
                raise UsageError(
                    f"{name} is {value} and variant {self.variant}, which has no such option; leave it out, or use "
                    f"variant={' or '.join(variants)}"
                )

    @property
    def follows_path(self) -> bool:
        return self.variant in ("paper", "released")

    @property
    def refined(self) -> bool:
        """Whether the model is refined at the end of its path."""
        return self.variant != "paper" and self.refine > 0

    def step(
        self,
        state: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        expert: Mapping[str, Tensor],
        members: Sequence[MemberFacts],
        problem: Any,
        watch: Watch | None = None,
    ) -> tuple[dict[str, Tensor], Known]:
        """See `ModelMethod.step`. The state holds the unrefined model under the base's names, and with target
        "merged" the sums of `end`. watch: see `methods.watch`.

        PlaitError where a loss or a gradient is not finite; VerificationError for a state that lacks a part.
        """
        return self.resolved()._step(state, base, expert, members, problem, watch)

    def _step(
        self,
        state: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        expert: Mapping[str, Tensor],
        members: Sequence[MemberFacts],
        problem: Any,
        watch: Watch | None,
    ) -> tuple[dict[str, Tensor], Known]:
        count = len(members)
        extra: dict[str, Tensor] = {}
        if self.target == "merged":
            held = {} if count == 1 else _of(state, "sum/")
            extra = Goal(self.end).take(held, base, expert, members[-1].weight)
        if count == 1:
            return {**{name: tensor.clone() for name, tensor in expert.items()}, **extra}, {
                "t": [0.0, 1.0],
                "t_end": 1.0,
            }
        sampled = calibrate(problem, count, self.calibration, self.samples, self.seed)
        before = sampled.work
        counted = Counted(watch, lambda: asdict(sampled.work - before))
        layout = Layout(base, self.granularity)
        calibration = Calibration(sampled, layout)
        theta = layout.flat(state)
        goal = expert if self.target == "expert" else Goal(self.end).merged(extra, base, members)
        known = self._path(layout, calibration, theta, layout.flat(goal), self._end(members), counted)
        known["work"] = counted.work()
        return {**layout.weights(theta), **extra}, known

    def finish(
        self,
        state: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        members: Sequence[MemberFacts],
        problem: Any,
        watch: Watch | None = None,
    ) -> tuple[dict[str, Tensor], Known]:
        """See `ModelMethod.finish`: the refinement, from the second member on.

        PlaitError where a loss or a gradient is not finite.
        """
        own = self.resolved()
        model = {name: state[name] for name in base}
        if not own.refined or len(members) < 2:
            return model, {}
        sampled = calibrate(problem, len(members), own.calibration, own.samples, own.seed)
        counted = Counted(watch, lambda: asdict(sampled.work - before))
        before = sampled.work
        layout = Layout(base)
        guarded = own.variant != "control_adamw"
        rest = Refine(
            layout, Calibration(sampled, layout), own.refine, own.rate, own.batch, own.seed, guarded=guarded
        )
        theta, trace = rest.follow(layout.flat(model), counted)
        return layout.weights(theta), {"refined": {**trace, "work": counted.work()}}

    def _path(
        self,
        layout: Layout,
        calibration: Calibration,
        theta: Tensor,
        target: Tensor,
        end: float,
        watch: Watch,
    ) -> Known:
        """Move `theta` along the variant's path, in place."""
        if self.variant == "paper":
            path = Path(layout, calibration, target, end, self.h, self.integrator, self.budget, self.line)
            return path.follow(theta, watch)
        if self.variant == "released":
            return Guarded(layout, calibration, target, end, self.h).follow(theta, watch)
        for _, block, away in layout.differences(target, theta):
            theta[block].add_(away, alpha=end)
        return {"t": [0.0, end], "t_end": end}

    def _end(self, members: Sequence[MemberFacts]) -> float:
        """How far to go."""
        if self.t_end is not None:
            return self.t_end
        if self.target == "merged":
            return 1.0
        return members[-1].weight / fsum(member.weight for member in members)


def _of(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors of the state whose names begin with `prefix`."""
    found = {name: tensor for name, tensor in state.items() if name.startswith(prefix)}
    if not found:
        raise VerificationError(
            f"the state of ode_m holds no tensors {prefix}..., expected those of the members so far; merge them again"
        )
    return found
