"""An end point for the path that a method without data makes of the members so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plait.errors import UsageError
from plait.methods.base import AdditiveMethod, MemberFacts, Method, Outlook, Part, Where
from plait.methods.pieces import whole
from plait.methods.registry import make
from plait.tensors import Tensor
from plait.tensors.exact import Exact, ExactSum, settle

PREFIX = "sum/"


def end_of(given: Any) -> Method:
    """A method from a name, a mapping with "name", or a `Method`. UsageError unless it adds up what it keeps of
    members in one pass, so that its sums are all that must be kept."""
    if isinstance(given, Method):
        method = given
    else:
        told = dict(given) if isinstance(given, Mapping) else {"name": given}
        method = make(str(told.pop("name", "")), told)
    plain = isinstance(method, AdditiveMethod) and not method.wants and not method.draws()
    if not plain or method.prepares() or method.concludes():  # type: ignore[attr-defined]
        raise UsageError(
            f"end is {method.name}, expected a method without data that adds members up in one pass, such as "
            "covariance, average or task_arithmetic"
        )
    return method


@dataclass(frozen=True)
class Goal:
    """Keeps the sums of `method`, rounded to fp64, as tensors called sum/SLOT/NAME."""

    method: AdditiveMethod

    def take(
        self,
        state: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        expert: Mapping[str, Tensor],
        weight: float,
    ) -> dict[str, Tensor]:
        """The sums with one more member, on the CPU. state: those before; none before the first member."""
        made = {}
        for name, start in base.items():
            where = whole(name, start)
            sums = self._sums(state, where)
            part = Part(where, start.cpu().reshape(-1), expert[name].cpu().reshape(-1), weight)
            for slot, addend in self.method.statistic(part).items():
                sums[slot].add(addend)
            made.update({_key(slot, name): total.value().double() for slot, total in sums.items()})
        return made

    def merged(
        self, state: Mapping[str, Tensor], base: Mapping[str, Tensor], members: Sequence[MemberFacts]
    ) -> dict[str, Tensor]:
        """What the method makes of the members."""
        outlook = Outlook(tuple(members))
        made = {}
        for name, start in base.items():
            where = whole(name, start)
            flat = start.cpu().reshape(-1)
            shift = self.method.merge(flat, self._sums(state, where), where, outlook)
            made[name] = settle(flat, shift, start.dtype).view(start.shape).to(start.device)
        return made

    def _sums(self, state: Mapping[str, Tensor], where: Where) -> dict[str, ExactSum]:
        found = {}
        for slot, layout in self.method.layout(where.shape, where.dtype, where.name).items():
            count = where.count if layout.length is None else layout.length
            total = ExactSum(count, layout.digits or where.dtype, narrow=layout.kind == "narrow")
            held = state.get(_key(slot, where.name))
            if held is not None:
                total.add(Exact.of(held.cpu().reshape(-1)))
            found[slot] = total
        return found


def _key(slot: str, name: str) -> str:
    return f"{PREFIX}{slot}/{name}"
