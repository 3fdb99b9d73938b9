"""MDM-OC: task vectors made orthogonal in their order of arrival, then added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from plait.errors import RefusedInput, UsageError
from plait.methods.base import Facts, MemberFacts
from plait.methods.coefficients import CoefficientMethod, Coefficients, Combination, Products, Removal
from plait.methods.fit import adopt
from plait.methods.groups import GRANULARITIES, group_of
from plait.methods.ranges import choice, finite
from plait.tensors import Tensor
from plait.tensors.gram_schmidt import Orthogonal, orthogonalise, principal, share, squared


@dataclass(frozen=True)
class MdmOc(CoefficientMethod):
    """base + sum_i alpha_i w_i q_i with q_i = tau_i - sum_{j<i} <tau_i, q_j> / ||q_j||^2 q_j (arXiv 2507.20997).

    No q is ever formed: T with q = T tau follows from the inner products of the task vectors, and the merged model is
    base + sum_i c_i tau_i with c = T^T (alpha w). So memory grows neither with the members nor with the model.

    A weight multiplies its task vector, which is the same as multiplying its alpha: directions do not change.

    alpha: of every member where nothing is fitted. 0 gives the base; 1 with one member of weight 1 that expert,
        bit for bit.
    granularity: what is made orthogonal to what. "model": whole task vectors, one inner product over all tensors;
        "layer": each layer by itself (a tensor's name up to its first number, else without its last part);
        "tensor": each tensor by itself.
    dependent: a member whose task vector lies in the span of the earlier ones has no direction of its own (what is
        new of it is below 1e-8 of its square). "refuse" it where that is so in all of its groups; "skip": it adds
        nothing. In single groups it always adds nothing: a tensor of 4 elements has no fifth direction. A task vector
        of zeros is no such case.
    fit: "cmaes" or "gradient" chooses alpha for every member and group by the members' losses (see `fit.Fit`),
        starting at `alpha`. None: it is fixed.
    rank: keep this many principal directions of the task vectors (of each group) and project the result onto them,
        which makes it approximate; 0: off. From the number of members on it changes nothing.
    """

    alpha: float = 0.3
    granularity: str = "model"
    dependent: str = "refuse"
    rank: int = 0
    fit: Any = None

    facts: ClassVar[Facts] = Facts(
        summary="sum of task vectors, each without what lies along earlier ones",
        family="coefficients",
        removal="recompute",
        data="none",
        order=True,
        memory="none, N² inner products a group",
        cost="1 pass for the inner products of a new member, 1 over all members",
        paper="arXiv 2507.20997",
    )

    def __post_init__(self) -> None:
        adopt(self)

    def check(self) -> None:
        finite("alpha", self.alpha)
        choice("granularity", self.granularity, GRANULARITIES)
        choice("dependent", self.dependent, ("refuse", "skip"))
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 0:
            raise UsageError(f"rank is {self.rank!r}, expected a whole number, 0 for no projection")

    def group(self, name: str) -> str:
        return group_of(name, self.granularity)

    def combine(
        self, products: Products, members: Sequence[MemberFacts], alpha: Coefficients | None = None
    ) -> Combination:
        made = {group: orthogonalise(gram) for group, gram in products.inner.items()}
        notes = self._dependents(products, made)
        rows = {group: o.coefficients(self._alpha(members, alpha, group)) for group, o in made.items()}
        if not self.rank:
            return Combination(rows, notes=notes)
        lost = whole = missed = moved = 0.0
        for group, gram in products.inner.items():
            onto = principal(gram, self.rank)
            whole += float(gram.diagonal().sum())
            moved += squared(gram, rows[group])
            if onto is not None:
                full, rows[group] = rows[group], onto.project(rows[group])
                lost += onto.lost
                missed += squared(gram, [a - b for a, b in zip(full, rows[group], strict=True)])
        found = {"error": share(lost, whole), "error_merged": share(missed, moved)}
        note = (
            f"approximate: {self.rank} principal directions are kept of {len(members)} task vectors; the error is "
            f"{found['error']:.2%} of their length, {found['error_merged']:.2%} of the merged shift"
        )
        return Combination(rows, found, (*notes, note))

    def remove(
        self,
        products: Products,
        members: Sequence[MemberFacts],
        index: int,
        alpha: Coefficients | None = None,
    ) -> Removal:
        """Subtracts alpha_k w_k q_k: every later q lost its component along tau_k when it was made, and that does not
        come back, so that a negative copy of tau_k stays in the model."""
        whole = self.combine(products, members, alpha).coefficients
        kept = [i for i in range(len(members)) if i != index]
        fewer = {group: [row[i] for i in kept] for group, row in alpha.items()} if alpha else None
        exact = self.combine(products.without(index), [members[i] for i in kept], fewer).coefficients
        rows: dict[str, list[float]] = {}
        missed = moved = 0.0
        for group, gram in products.inner.items():
            step = self._direction(gram, index, self._alpha(members, alpha, group)[index])
            rows[group] = [a - b for a, b in zip(whole[group], step, strict=True)]
            never = list(exact[group])
            never.insert(index, 0.0)
            missed += squared(gram, [a - b for a, b in zip(rows[group], never, strict=True)])
            moved += squared(gram, never)
        return Removal(rows, {group: row[index] for group, row in rows.items()}, share(missed, moved))

    def _direction(self, gram: Tensor, index: int, alpha: float) -> list[float]:
        """alpha q_k as a combination of task vectors, as far as it is in the merged model."""
        made = orthogonalise(gram)
        only = [alpha if i == index else 0.0 for i in range(len(gram))]
        step = made.coefficients(only)
        onto = principal(gram, self.rank) if self.rank else None
        return step if onto is None else onto.project(step)

    def _alpha(self, members: Sequence[MemberFacts], alpha: Coefficients | None, group: str) -> list[float]:
        given = [self.alpha] * len(members) if alpha is None else alpha[group]
        return [a * m.weight for a, m in zip(given, members, strict=True)]

    def _dependents(self, products: Products, made: dict[str, Orthogonal]) -> tuple[str, ...]:
        """Refuses members without a direction of their own, or tells of them."""
        places: list[list[str]] = [[] for _ in products.tasks]
        for group, found in made.items():
            for i in found.dependent:
                places[i].append(group)
        nowhere = []
        for i, (task, groups) in enumerate(zip(products.tasks, places, strict=True)):
            if groups and len(groups) == sum(float(g[i, i]) > 0 for g in products.inner.values()):
                others = _made_of(products, made[groups[0]], groups[0], i)
                if self.dependent == "refuse":
                    raise RefusedInput(
                        f"the task vector of {task} is a combination of those of {', '.join(others)}, expected one "
                        "with a direction of its own; leave it out, or use dependent=skip to let it add nothing"
                    )
                nowhere.append(task)
        notes = []
        if nowhere:
            notes.append(f"no direction of its own, adds nothing: {', '.join(nowhere)}")
        some = {group for groups in places for group in groups}
        if some and len(nowhere) < sum(map(bool, places)):
            notes.append(
                f"in {len(some)} of {len(made)} {self.granularity}s task vectors have fewer directions than members, "
                "and later members add nothing there"
            )
        return tuple(notes)


def _made_of(products: Products, found: Orthogonal, group: str, index: int) -> list[str]:
    """Those whose task vectors make up that of a dependent member."""
    row, gram = found.transform()[index], products.inner[group]
    parts = [abs(float(row[j])) * float(gram[j, j]) ** 0.5 for j in range(index)]
    return [t for t, part in zip(products.tasks, parts, strict=False) if part > 1e-3 * max(parts)]
