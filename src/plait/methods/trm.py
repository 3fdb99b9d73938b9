"""TRM: between the model so far and the expert, tensor by tensor, with two models and the new task's data alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from typing import Any, ClassVar

from plait.errors import UsageError
from plait.methods.base import Facts, Known, MemberFacts, ModelMethod
from plait.methods.groups import GRANULARITIES
from plait.methods.ranges import at_least, choice, finite, share, truth
from plait.methods.tables import pattern
from plait.methods.trm_parts.descent import Descent
from plait.methods.trm_parts.layers import depths
from plait.methods.trm_parts.mix import Mix
from plait.methods.trm_parts.terms import Terms
from plait.methods.watch import Counted, Watch
from plait.tensors import Tensor, torch
from plait.tensors.random import uniform

FREE = ("alpha", "samples", "batch", "seed")
"""Options that a constant alpha goes with."""


@dataclass(frozen=True)
class Trm(ModelMethod):
    """With tau_t the task vector of the expert and tau_t-1 that of the model so far (TRM, arXiv 2605.08311),

        base + alpha tau_t + (1 - alpha) tau_t-1 + beta P

    where alpha and beta, one of each for every tensor, descend by Adam on L_align + pre L_pre + res L_res:

        L_align = cross-entropy on examples of the new task
        L_pre = sum_l omega_l ||h_l - (h_l(expert) + h_l(model so far)) / 2||^2 / dim,  omega_l = l / sum l
        L_res = -||gradient of L_align||^2, over its value in the first step

    h_l is what layer l puts out. P is random, orthogonal to both task vectors and of length rho times that of their
    difference; see `trm_parts.mix`. Only the model so far is kept. The first member is the model, bit for bit.
    Weights of members change nothing.

    alpha: one for all tensors, with beta 0, and nothing is fitted: 0 keeps the model so far, 1 takes the expert;
        none: fitted.
    granularity: what has an alpha, a beta and a P of its own: each "tensor", each "layer", or the whole "model".
    begin: alpha at the start; none: 0 or 1 at random for every tensor or layer, 1/2 for the model. beta starts at 0.
    steps, rate: of Adam. 0 steps: what it starts with.
    batch: examples in a step, drawn anew for every step; 0: all. samples: examples of the new task in all.
    pre, res: factors of these terms; 0 leaves one out.
    normalise: false: L_res is the plain square, which has no bound.
    depth: omega_l is in proportion to l^depth; 0: all layers count the same.
    layers: regular expression that finds the modules whose outputs count; empty: the network's layers.
    rho: length of P; 0: there is none.
    alpha_least, alpha_most: bounds of alpha. beta_most: of the size of beta; 0: it stays 0.
    seed: of the start, of P, and of the examples that are drawn.
    """

    alpha: float | None = None
    granularity: str = "tensor"
    begin: float | None = None
    steps: int = 50
    rate: float = 0.01
    batch: int = 128
    samples: int = 1024
    pre: float = 1.0
    res: float = 0.01
    normalise: bool = True
    depth: float = 1.0
    layers: str = ""
    rho: float = 0.1
    alpha_least: float = 0.0
    alpha_most: float = 1.0
    beta_most: float = 1.0
    seed: int = 0

    facts: ClassVar[Facts] = Facts(
        summary="between the model so far and the expert, at shares fitted on the new task's examples",
        family="storage-free",
        removal="never",
        data="labelled new",
        order=True,
        memory="1 value in fp32",
        cost="2 gradients and a Hessian-vector product a step",
        paper="arXiv 2605.08311",
    )

    def __post_init__(self) -> None:
        if self.alpha is not None:
            facts = replace(type(self).facts, data="none", cost="1 pass")
            object.__setattr__(self, "facts", facts)

    def check(self) -> None:
        choice("granularity", self.granularity, GRANULARITIES)
        for name, least in (("steps", 0), ("batch", 0), ("samples", 1), ("seed", 0)):
            at_least(name, getattr(self, name), least)
        for name in ("rate", "pre", "res", "depth", "rho", "beta_most"):
            finite(name, getattr(self, name))
            at_least(name, getattr(self, name), 0)
        truth("normalise", self.normalise)
        pattern("layers", self.layers)
        finite("alpha_least", self.alpha_least)
        finite("alpha_most", self.alpha_most)
        if self.alpha_least > self.alpha_most:
            raise UsageError(
                f"alpha_least is {self.alpha_least} and alpha_most {self.alpha_most}; expected bounds in this order"
            )
        if self.begin is not None:
            finite("begin", self.begin)
            if not self.alpha_least <= self.begin <= self.alpha_most:
                raise UsageError(
                    f"begin is {self.begin}, expected a number between alpha_least and alpha_most, "
                    f"{self.alpha_least} and {self.alpha_most}"
                )
        if self.alpha is not None:
            self._check_constant(self.alpha)

    def _check_constant(self, alpha: float) -> None:
        share("alpha", alpha)
        for f in fields(self):
            if f.name not in FREE and getattr(self, f.name) != f.default:
                raise UsageError(
                    f"{f.name} is {getattr(self, f.name)!r} and alpha {alpha}, with which nothing is fitted; leave "
                    "one of them out"
                )

    def step(
        self,
        state: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        expert: Mapping[str, Tensor],
        members: Sequence[MemberFacts],
        problem: Any,
        watch: Watch | None = None,
    ) -> tuple[dict[str, Tensor], Known]:
        """See `ModelMethod.step`. The state is the model. watch: see `methods.watch`; an interrupted step goes on
        with the bytes of one that was not.

        What was found: `alpha` and `beta` by group; `path`, see `Descent.follow`; the `losses` of four models on all
        examples; `still`, how many groups have no P. PlaitError where a term is not finite.
        """
        if len(members) == 1:
            return {name: tensor.clone() for name, tensor in expert.items()}, _constant(1.0)
        old = {name: state[name] for name in base}
        if self.alpha is not None:
            mix = Mix(base, old, expert, "model", b"", 0.0)
            x = torch.tensor([[self.alpha], [0.0]], dtype=torch.float64)
            return mix.at(x), _constant(self.alpha)
        if problem is None:
            raise UsageError(
                "trm follows losses and was given none; hand in a problem (see docs/problems.md), or set alpha"
            )
        seen = problem.seen(len(members))
        newest = seen.only(seen.last).sample(self.samples, self.seed)
        return self._fitted(base, old, expert, newest, len(members), watch)

    def _fitted(
        self,
        base: Mapping[str, Tensor],
        old: dict[str, Tensor],
        expert: Mapping[str, Tensor],
        newest: Any,
        count: int,
        watch: Watch | None,
    ) -> tuple[dict[str, Tensor], Known]:
        before = newest.work
        objective = newest[newest.last]
        root = sha256(f"trm {self.seed} {count}".encode()).digest()
        mix = Mix(base, old, expert, self.granularity, root, self.rho if self.beta_most else 0.0)
        start = torch.stack([self._begin(mix.groups, root), torch.zeros(len(mix.groups)).double()])

        def batch(number: int) -> Any:
            draw = int.from_bytes(sha256(root + str(number).encode()).digest()[:6], "little")
            return objective.sample(self.batch, draw) if self.batch else objective

        layers = depths(objective, expert, self.layers, self.depth) if self.pre else {}
        descent = Descent(
            mix,
            Terms((expert, old), self.pre, self.res, layers),
            batch,
            self.steps,
            self.rate,
            ((self.alpha_least, self.alpha_most), (-self.beta_most, self.beta_most)),
            self.normalise,
        )
        counted = Counted(watch, lambda: asdict(newest.work - before))
        x, path = descent.follow(start, counted)
        merged = mix.at(x)
        losses = {"old": objective.loss(old), "expert": objective.loss(expert)}
        losses |= {"start": objective.loss(mix.at(start)), "merged": objective.loss(merged)}
        return merged, {
            "alpha": dict(zip(mix.groups, x[0].tolist(), strict=True)),
            "beta": dict(zip(mix.groups, x[1].tolist(), strict=True)),
            "path": path,
            "losses": losses,
            "still": int((~mix.movable).sum()),
            "work": counted.work(),
        }

    def _begin(self, groups: Sequence[str], root: bytes) -> Tensor:
        """(G,) fp64: alpha at the start."""
        if self.begin is not None:
            return torch.full((len(groups),), self.begin, dtype=torch.float64)
        if self.granularity == "model":
            return torch.full((len(groups),), 0.5, dtype=torch.float64)
        # A line break is in no tensor's name, so this is no number of P.
        draws = [float(uniform(root, f"crossover\n{group}", 0, 1)) for group in groups]
        return torch.tensor([float(draw >= 0.5) for draw in draws], dtype=torch.float64)


def _constant(alpha: float) -> Known:
    return {"alpha": {"model": alpha}, "beta": {"model": 0.0}}
