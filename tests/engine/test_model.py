"""Methods that see all weights at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from plait import engine
from plait.errors import NonFinite, VerificationError
from tests.engine.files import Bench, Tensors, all_same, base_tensors, expert_of, places, save
from tests.engine.toys import Walk


def loss(weights: dict[str, Tensor]) -> float:
    return float(sum(w.square().sum() for w in weights.values()))


def run(
    bench: Bench,
    members: list[engine.Incoming],
    enter: list[engine.Incoming],
    state: Path | None,
    name: str,
    method: Walk | None = None,
) -> tuple[Tensors, engine.Modelled]:
    out = places(bench.folder / f"{name}.safetensors", bench.base)
    done = engine.run_model(
        method or Walk(),
        bench.base,
        members,
        loss,
        out,
        enter=enter,
        state=state,
        new_state=bench.folder / name,
        settings=engine.Settings(1),
    )
    return load_file(bench.folder / f"{name}.safetensors"), done


def test_steps_follow_the_members_and_the_state_goes_on(tmp_path: Path) -> None:
    base = {**base_tensors(), "steps": torch.tensor(7)}
    bench = Bench(tmp_path, base, [expert_of(base, n) for n in range(3)])
    found, done = run(bench, bench.members, bench.members, None, "all")
    want = {n: t.float() for n, t in base.items() if t.is_floating_point()}
    for number, expert in enumerate(bench.experts):
        want = {n: w + (expert[n].float() - w) / 2 for n, w in want.items()}
        # sums of the same fp32 squares by the same code
        assert done.known[f"t{number}"] == {"loss": loss(want), "members": number + 1}
    assert all_same(found, {**{n: w.bfloat16() for n, w in want.items()}, "steps": base["steps"]})
    assert done.counts == {"merged": 5, "copied": 2}
    run(bench, bench.members[:2], bench.members[:2], None, "two")
    again, _ = run(bench, bench.members, bench.members[2:], tmp_path / "two", "three")
    assert all_same(again, found)
    assert (tmp_path / "three" / "state.safetensors").read_bytes() == (
        tmp_path / "all" / "state.safetensors"
    ).read_bytes()


@dataclass(frozen=True)
class Polished(Walk):
    """Walks, and adds 1 to what is deployed."""

    def finish(
        self, state: Mapping[str, Tensor], base: Mapping[str, Tensor], members: Sequence[Any], problem: Any
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {name: state[name] + 1 for name in base}, {"polished": len(members), "loss": "after"}


def test_what_is_deployed_is_finished_and_the_state_is_not(tmp_path: Path) -> None:
    base = base_tensors()
    bench = Bench(tmp_path, base, [expert_of(base, n) for n in range(3)])
    run(bench, bench.members, bench.members, None, "plain")
    found, done = run(bench, bench.members, bench.members, None, "all", Polished())
    states = [load_file(tmp_path / name / "state.safetensors") for name in ("plain", "all")]
    assert all_same(*states)
    assert all_same(
        found,
        {n: (t + 1).bfloat16() for n, t in states[1].items()}
        | {n: t for n, t in base.items() if not t.is_floating_point() or n not in states[1]},
    )
    assert [done.known[f"t{i}"].get("polished") for i in range(3)] == [None, None, 3]
    assert done.known["t2"] == {"loss": "after", "members": 3, "polished": 3}
    again, more = run(bench, bench.members, [], tmp_path / "all", "again", Polished())  # from the state alone
    assert all_same(again, found)
    assert more.known == {"t2": {"loss": "after", "polished": 3}}  # what was known is the caller's


def test_an_output_that_overflows_is_counted(tmp_path: Path) -> None:
    base: Tensors = {"a": torch.randn(9), "c": torch.randn(3)}
    refs = save(tmp_path / "base", base)
    expert = save(tmp_path / "expert", {**base, "a": base["a"] + 1e6})
    member = engine.Incoming("t", refs={"a": expert["a"]})
    for dtype, want in (("F16", {"a": 9}), ("F32", {})):
        out = places(tmp_path / dtype, refs, dtype)
        done = engine.run_model(
            Walk(),
            refs,
            [member],
            loss,
            out,
            enter=[member],
            state=None,
            new_state=None,
            settings=engine.Settings(1),
        )
        assert done.overflowed == want


def test_faults_are_refused(tmp_path: Path) -> None:
    base = base_tensors()
    expert = expert_of(base, 0)
    expert["small"][2] = float("nan")
    bench = Bench(tmp_path, base, [expert])
    with pytest.raises(NonFinite, match=r"t0: small\[2\] is nan"):
        run(bench, bench.members, bench.members, None, "x")
    other = save(tmp_path / "other", {"w": torch.zeros(3)})
    member = replace(bench.members[0], refs={})
    out = places(tmp_path / "out", other)
    settings = engine.Settings(1)
    engine.run_model(
        Walk(),
        other,
        [member],
        loss,
        out,
        enter=[member],
        state=None,
        new_state=tmp_path / "s",
        settings=settings,
    )
    with pytest.raises(VerificationError, match="tensor frozen is missing or of another shape"):
        run(bench, [member], [member], tmp_path / "s", "y")
