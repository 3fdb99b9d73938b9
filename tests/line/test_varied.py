"""Lines whose options and weights differ from tensor to tensor: numbers, exactness, and what is told of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from plait import Line, merge_files, merge_state_dicts
from plait.errors import UsageError
from plait.methods.base import TensorMethod
from plait.methods.memory import apply
from plait.methods.registry import make
from plait.methods.varied import Varied
from tests.line.models import SHAPES, base_tensors, differing, expert_tensors, read, write_file

RULED = "layer.0.*:0; embeddings.*:2; 0.5..1"
OWN = {"layer.0.": 0.0, "embeddings.": 2.0, "layer.1.": 1.0, "pooler.": 0.5}
"""The weight of `RULED` by the start of a tensor's name."""

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("average", {}),
    ("average", {"sparsify": "dare", "sparsify.density": "*.norm.*:1; 0.2..0.9"}),
    ("task_arithmetic", {"scale": {"embeddings.*": 0.25, "*": [0.5, 1]}}),
    ("ties", {"density": "embeddings.*:0.1; 0.5..1", "scale": "pooler.*:2; 1"}),
    ("ties", {}),
    ("model_stock", {"sparsify": "breadcrumbs", "sparsify.density": [0.9, 0.5]}),
    ("magmax", {"scale": "embeddings.*:0.5; 1"}),
    ("magmax", {}),
    ("nufilt", {"rank": "layer.*:2; 4"}),
    ("tsv_m", {"scale": [0.2, 0.8]}),
]


@pytest.fixture
def world(tmp_path: Path) -> Path:
    base = base_tensors()
    write_file(tmp_path / "base.safetensors", base)
    for number, task in enumerate("abcd"):
        write_file(tmp_path / f"{task}.safetensors", expert_tensors(base, number))
    return tmp_path


def start(world: Path, name: str, method: str, options: dict[str, Any], **more: Any) -> Line:
    return Line.create(world / name, world / "base.safetensors", method, **more, **options)


def state(line: Line) -> dict[str, str]:
    return dict(line._head()["state"] or {})


@pytest.mark.parametrize(("method", "options"), METHODS, ids=str)
def test_any_road_leads_to_the_bytes_of_the_member_list(
    world: Path, method: str, options: dict[str, Any]
) -> None:
    line = start(world, "line", method, options)
    line.merge(world / "a.safetensors", "a")
    line.merge(world / "b.safetensors", "b", weight=RULED)
    line.merge(world / "c.safetensors", "c", weight="layer.*:0; 1")
    line.unmerge("a")
    line.merge(world / "d.safetensors", "d")
    line.reweight("c", RULED)
    line.unmerge("b")
    fresh = start(world, "fresh", method, options)
    fresh.merge(world / "c.safetensors", "c", weight=RULED)
    fresh.merge(world / "d.safetensors", "d")
    assert (line.digest, state(line)) == (fresh.digest, state(fresh))
    for one in (line, fresh):
        assert one.verify(replay=True)["replay"] == "equal"
    line.unmerge("d")
    line.reweight("c", 1.0)
    fresh.unmerge("d")
    fresh.unmerge("c")
    assert fresh.digest == fresh.log()[0]["version"]
    fresh.merge(world / "c.safetensors", "c")
    assert (line.digest, state(line)) == (fresh.digest, state(fresh))


@pytest.mark.parametrize(("method", "options"), METHODS, ids=str)
def test_files_memory_and_the_plain_method_of_each_tensor_agree(
    world: Path, method: str, options: dict[str, Any]
) -> None:
    base, experts = read(world / "base.safetensors"), [read(world / f"{t}.safetensors") for t in "ab"]
    paths = [world / f"{t}.safetensors" for t in "ab"]
    weights = [1.0, RULED]
    merge_files(
        world / "base.safetensors", paths, world / "out.safetensors", method, weights, workers=2, **options
    )
    got = read(world / "out.safetensors")
    assert not differing(got, merge_state_dicts(base, experts, method, weights, **options))
    bound = make(method, options).over(base)
    for name in SHAPES:  # the formula with the numbers of one tensor, on a model that has no other
        own = next(weight for start, weight in OWN.items() if name.startswith(start))
        if not own:
            continue  # the other member may count all the same, see `test_a_weight_that_is_zero...`
        plain = bound.at(name) if isinstance(bound, Varied) else bound
        assert isinstance(plain, TensorMethod)
        seeds = [_seed(world, task) for task in "ab"] if plain.draws() else None
        parts = [{name: expert[name]} for expert in experts]
        alone = apply(plain, {name: base[name]}, parts, [1.0, own], seeds=seeds)
        assert not differing({name: got[name]}, alone)


def _seed(world: Path, task: str) -> bytes:
    from plait.line.member import seed_of
    from plait.line.once import state_dict_digest

    return seed_of(0, state_dict_digest(read(world / f"{task}.safetensors")))


def test_numbers_by_hand() -> None:
    names = ["embed", "layers.0.mlp", "layers.1.mlp", "layers.2.attn", "layers.2.mlp", "head"]
    base = {name: torch.zeros(2, dtype=torch.float64) for name in names}
    one = {name: torch.full((2,), 8.0, dtype=torch.float64) for name in names}
    two = {name: torch.full((2,), 16.0, dtype=torch.float64) for name in names}
    scale = {"*.attn": 4, "layers.*": [0, 1], "*": 0.25}
    made = merge_state_dicts(base, [one], "task_arithmetic", scale=scale)
    assert [float(made[name][0]) for name in names] == [2, 0, 4, 32, 8, 2]
    weights = [1.0, "layers.*.mlp:0..1; head:0; 3"]
    made = merge_state_dicts(base, [one, two], "average", weights)
    wanted = [14, 8, (8 + 0.5 * 16) / 1.5, 14, 12, 8]
    assert [float(made[name][0]) for name in names] == pytest.approx(wanted, rel=1e-15)


def test_statistics_take_a_member_out_with_its_rules(world: Path) -> None:
    line = start(world, "line", "ties", {"density": [0.2, 0.8]}, retention="statistics")
    line.merge(world / "a.safetensors", "a")
    before = line.digest
    line.merge(world / "b.safetensors", "b", weight=RULED)
    line.unmerge("b", checkpoint=world / "b.safetensors")
    assert line.digest == before


def test_a_weight_that_is_zero_everywhere_but_one_tensor_moves_that_one_only(world: Path) -> None:
    line = start(world, "line", "task_arithmetic", {})
    before = read(next(line.model.glob("*.safetensors")))
    line.merge(world / "a.safetensors", "a", weight="embeddings.*:1; 0")
    after = read(next(line.model.glob("*.safetensors")))
    assert [n for n in after if differing({n: after[n]}, {n: before[n]})] == ["embeddings.weight"]


@pytest.mark.parametrize(
    "method",
    [
        "average",
        "ties",
        "model_stock",
        "covariance",
        "magmax",
        "nufilt",
        "dop",
        "iso_c",
        "tsv_m",
        "iso_cts",
        "wudi",
        "slerp",
    ],
)
def test_a_weight_of_zero_leaves_a_member_out_of_a_tensor(method: str) -> None:
    base = base_tensors()
    one, two = (expert_tensors(base, number) for number in (0, 1))
    without = merge_state_dicts(base, [one], method)
    both = merge_state_dicts(base, [one, two], method)
    made = merge_state_dicts(base, [one, two], method, [1.0, "layer.0.*:0; 1"])
    inside = [name for name in made if name.startswith("layer.0.")]
    assert (
        differing(
            {n: t for n, t in made.items() if n not in inside}, {n: both[n] for n in both if n not in inside}
        )
        == []
    )
    # A state in fp32 gives a single member back up to rounding.
    assert all(torch.allclose(made[n], without[n], rtol=1e-6, atol=1e-7) for n in inside)


def test_methods_that_look_at_whole_vectors_refuse_weights_by_tensor(world: Path) -> None:
    line = start(world, "line", "mdm_oc", {})
    with pytest.raises(UsageError, match="weight differs from tensor to tensor, and method mdm_oc"):
        line.merge(world / "a.safetensors", "a", weight=[1, 2])
    assert line.members == ()


def test_patterns_without_a_tensor_are_told(world: Path) -> None:
    line = start(world, "line", "ties", {"density": "nosuch*:0.1; 0.2"})
    assert line.log()[0]["notes"] == ["density: no tensor is left for pattern nosuch*"]
    wanted = ["weight: no tensor is left for pattern layr.*"]
    merged = line.merge(world / "a.safetensors", "a", weight="layr.*:2; 1")
    assert merged["notes"] == wanted
    assert line.reweight("a", "layer.*:2; 1")["notes"] == []
    assert line.reweight("a", "layr.*:3; 1")["notes"] == wanted
    assert line.replace("a", world / "b.safetensors")["notes"] == wanted
