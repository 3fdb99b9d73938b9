"""Removal by algebra: the direction of a task is subtracted, and the other members are not looked at again.

The model that it leaves is no function of the list of members, so it is never called exact. Its ledger entry names,
in `objects`, the combination that it is (members, the removed one among them, and coefficients) and the task vector
of the removed one, so that it can be made again until that one is purged. The next change makes the model from its
members, and nothing of this is left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from plait.errors import NotRemovable
from plait.line import removal, views
from plait.line.build import Built, Operand, Setting, build, incoming, link_state, operand, write_json
from plait.line.commit import commit
from plait.line.member import Member
from plait.methods.base import MemberFacts
from plait.methods.coefficients import CoefficientMethod, Removal
from plait.store import Store

HOW = "algebraic"


def check(method: object) -> CoefficientMethod:
    """The method, where it has an algebraic removal. NotRemovable where it has none."""
    if isinstance(method, CoefficientMethod) and type(method).remove is not CoefficientMethod.remove:
        return method
    name = getattr(method, "name", method)
    raise NotRemovable(
        f"method {name} has no algebraic removal, which is for methods that make task vectors orthogonal, such as "
        "mdm_oc; leave --algebraic out: the removal is then exact"
    )


def unmerge(
    setting: Setting, work: Path, members: Sequence[Member], index: int, began: float
) -> dict[str, Any]:
    """Subtract the direction of member `index`; records the change and returns what the user is told."""
    store, method = setting.store, check(setting.method)
    gone, after = members[index], [m for i, m in enumerate(members) if i != index]
    operands = [operand(setting, m) for m in members]
    left, built = _subtract(setting, method, work, members, operands, index)
    note = f"not exact: algebraic removal of {gone.task} ({words(left)})"
    receipt = removal.receipt(gone, after, HOW, built.digest, ()) | {
        "exact": False,
        "never_merged": None,
        "remaining": left.remaining,
        "distance": left.distance,
    }
    receipt["note"] = "; ".join(filter(None, [note, receipt.get("note")]))
    rows = {group: list(row) for group, row in left.coefficients.items()}
    # Data of members took no part in it, and those of the removed one are not kept.
    bare = [replace(m, known=None, data=None, side=None, examples=None, objects=()) for m in members]
    combination = {"members": [m.plain() for m in bare], "coefficients": rows}
    kept = store.objects.put_file(write_json(work / "made.json", combination))
    inexact = {
        "objects": {"combination": kept, "removed": gone.object},
        "inexact": {"task": gone.task, "distance": left.distance, "note": note},
    }
    return commit(store, "unmerge", gone.task, built, work, began, fresh=True, receipt=receipt, more=inexact)


def words(left: Removal) -> str:
    """What is left, in a line."""
    values = sorted(left.remaining.values())
    span = f"{values[0]:.3g}" if len(values) == 1 else f"{values[0]:.3g} to {values[-1]:.3g}, by group,"
    return (
        f"{span} of its task vector stays, and the model is off by {left.distance:.2%} of the shift of the one that "
        "never had it"
    )


def _subtract(
    setting: Setting,
    method: CoefficientMethod,
    work: Path,
    members: Sequence[Member],
    operands: Sequence[Operand],
    index: int,
) -> tuple[Removal, Built]:
    """What is left, and the version with the state of the members that stay."""
    from plait.engine.coefficients import remember, shorten

    head = views.last(setting.store)
    state = link_state(setting, head["state"], work / "state-before")
    assert state is not None
    all_ = [incoming(setting, o) for o in operands]
    products, alpha = remember(state, all_)
    facts = [MemberFacts(m.weight, {}) for m in members]
    left = method.remove(products, facts, index, alpha)
    assert left is not None
    built = build(setting, members, work, enter=operands, coefficients=left.coefficients)
    after = [m for i, m in enumerate(members) if i != index]
    folder = work / "state"
    sums = shorten(method, all_, index, state, folder)
    return left, replace(built, members=tuple(after), state=folder, sums={folder: sums})


def combination(store: Store, entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """What an inexact version is made of; None where that is not kept."""
    digest = (entry.get("objects") or {}).get("combination")
    if digest is None or not store.objects.has(digest):
        return None
    found: dict[str, Any] = json.loads(store.objects.get(digest))
    held = [m["object"] for m in found["members"]]
    return found if all(store.objects.has(d) for d in held) else None


def again(setting: Setting, entry: Mapping[str, Any], work: Path) -> Built:
    """The version of a ledger entry, made anew from its members; an inexact one from its combination, which must be
    kept."""
    made = combination(setting.store, entry) if entry.get("inexact") else None
    rows = made["members"] if made else entry["members"]
    members = [Member.of({**row, "known": None}) for row in rows]
    given = made["coefficients"] if made else None
    return build(setting, members, work, enter=[operand(setting, m) for m in members], coefficients=given)
