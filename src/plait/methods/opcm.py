"""OPCM: a new task vector loses what it would change in the leading singular directions so far."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Any, ClassVar

from plait.methods.base import (
    Answers,
    Facts,
    Known,
    MemberFacts,
    Outlook,
    Part,
    Slot,
    State,
    Survey,
    Where,
)
from plait.methods.matrices import OfMatrices
from plait.methods.ranges import choice, share
from plait.tensors import Tensor, torch
from plait.tensors.norms import block_sums
from plait.tensors.spectral import Spectrum, spectrum


@dataclass(frozen=True)
class Opcm(OfMatrices):
    """base + S * n / ||S||, n = mean ||w_i tau_i||, norms over all tensors
    (Tang et al. 2025, arXiv 2501.09522, algorithm 1).

    S, the sum so far, starts at 0. For the matrix of a linear layer, S = U diag(sigma) V^T, and the task
    vector tau enters as

        S + tau - U_r (U_r^T tau V_r) V_r^T

    with U_r, V_r the r leading singular vectors, whose singular values hold at most `share` of the sum of
    all. Other tensors are added as they are. One rescale at the output is what the paper's recursion over
    lambda_t comes to.

    share: of the singular mass that is protected. 0 adds everything, 1 protects every direction of S.
        Directions with a singular value below 1e-6 of the largest are empty and not protected.
    variant: "block" as above, with which the paper's numbers were made; "diagonal" also takes out
        u_j^T tau v_j for every j beyond r, as later published code does (with share 0, the diagonal alone).
    tables: regular expression; a tensor whose name it finds is a look-up table, no linear layer, and is
        added as it is. "" finds none.
    convolutions: true takes kernels (out, in, height, width) as matrices (out, in * height * width), but for those
        with one input channel, as of depthwise convolutions; false adds all of them as they are.

    The state is S in fp32 (fp64 where the base is fp64). Decompositions are made in fp64, and products with tau in
    the state's dtype.
    One member of weight 1 comes back bit for bit.
    """

    share: float = 0.5
    variant: str = "block"

    facts: ClassVar[Facts] = Facts(
        summary="sum of task vectors, each without what touches the leading singular directions so far",
        family="fold",
        removal="refold",
        data="none",
        order=True,
        memory="1 value in fp32",
        cost="2 passes, an eigen-decomposition a matrix, 1 pass over the state",
        paper="Tang et al. 2025, arXiv 2501.09522",
    )

    def check(self) -> None:
        super().check()
        share("share", self.share)
        choice("variant", self.variant, ("block", "diagonal"))

    def slots(self, shape: tuple[int, ...], dtype: str) -> dict[str, Slot]:
        return {"total": Slot("float64" if dtype == "F64" else "float32")}

    def across(self) -> str:
        return "scales by the norms of whole task vectors"

    def prepare(self, places: Mapping[str, Where], size: int) -> Generator[Survey, Answers, Known]:
        answers = yield Survey()
        return {"norm": _norm(answers)}

    def measure(self, part: Part, ask: Any) -> list[float]:
        return _squares(_tau(part))

    def step(self, state: State, part: Part) -> State:
        total: Tensor = state["total"]
        tau = _tau(part)
        if not bool(tau.any()):
            return state
        if part.weight != 1:
            tau *= part.weight
        shape = self.matrix(part.where.shape, part.where.name)
        if shape is not None and bool(total.any()):
            inside = self.protected(total.view(shape), tau.to(total.dtype).view(shape))
            if inside is not None:
                tau -= inside.flatten()
        tau += total
        return {"total": tau.to(total.dtype)}

    def protected(self, total: Tensor, tau: Tensor) -> Tensor | None:
        """The part of `tau` that must not be added to `total`, both (m, n) and of one dtype; None where it is 0."""
        found = spectrum(total)
        count = found.leading(self.share)
        if self.variant == "diagonal":
            return _block_and_diagonal(found, count, tau)
        if not count:
            return None
        left, right = found.left(count), found.right(count)
        return _sandwich(left, _middle(left, tau, right), right)

    def conclude(
        self, places: Mapping[str, Where], members: Sequence[MemberFacts]
    ) -> Generator[Survey, Answers, Known]:
        answers = yield Survey()
        norm = _norm(answers)
        mean = fsum(abs(m.weight) * m.known["norm"] for m in members) / len(members) if members else 0.0
        return {"factor": mean / norm if norm else 0.0}

    def examine(self, where: Where, state: State, ask: Any) -> list[float]:
        return _squares(state["total"].double())

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Tensor:
        factor: float = outlook.known["factor"]
        shift: Tensor = state["total"].double() * factor
        return base.double() + shift

    def reduces(self, members: Sequence[MemberFacts]) -> bool:
        return len(members) == 1 and members[0].weight == 1


def _tau(part: Part) -> Tensor:
    return part.expert.to(torch.float64, copy=True).sub_(part.base)


def _squares(values: Tensor) -> list[float]:
    return block_sums(values * values)


def _norm(answers: Answers) -> float:
    return sqrt(fsum(value for found in answers.values() for _, sums in found for value in sums))


def _middle(left: Tensor, tau: Tensor, right: Tensor) -> Tensor:
    """left^T tau right, the smaller side first: the product with the larger side is then narrow."""
    if tau.shape[0] >= tau.shape[1]:
        return (left.T @ tau) @ right
    return left.T @ (tau @ right)


def _sandwich(left: Tensor, middle: Tensor, right: Tensor) -> Tensor:
    """left middle right^T."""
    if left.shape[0] >= right.shape[0]:
        return left @ (middle @ right.T)
    return (left @ middle) @ right.T


def _block_and_diagonal(found: Spectrum, count: int, tau: Tensor) -> Tensor | None:
    """left middle right^T, where middle is left^T tau right in its first `count` rows and columns and on its
    diagonal, 0 elsewhere."""
    size = len(found.values)
    if not size:
        return None
    left, right = found.left(size), found.right(size)
    turned = tau @ right
    diagonal = torch.linalg.vecdot(left, turned, dim=0)
    inner = diagonal[:, None] * right.T
    if count:
        inner[:count] = (left[:, :count].T @ turned[:, :count]) @ right[:, :count].T
    made: Tensor = left @ inner
    return made
