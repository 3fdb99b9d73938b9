"""RegMean against least squares on the pooled inputs, and what happens where moments are missing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from plait import merge_state_dicts
from plait.errors import NonFinite, RefusedInput, UsageError
from plait.methods.memory import Table, apply
from plait.methods.registry import make

Model = dict[str, Tensor]


def world(
    count: int, examples: int = 40, shape: tuple[int, int] = (5, 8), dtype: torch.dtype = torch.float64
) -> tuple[Model, list[Model], list[Tensor]]:
    """A base, experts, and the inputs that each expert's layer saw, (examples, in)."""
    draw = torch.Generator().manual_seed(2)
    base = {"w": torch.randn(shape, generator=draw) / 16}
    experts = [{"w": base["w"] + torch.randn(shape, generator=draw) / 256} for _ in range(count)]
    inputs = []
    for i in range(count):
        mix = torch.randn(shape[1], shape[1], generator=draw) * (1 + i)
        inputs.append((torch.randn(examples, shape[1], generator=draw) @ mix).double())
    return {"w": base["w"].to(dtype)}, [{"w": e["w"].to(dtype)} for e in experts], inputs


def sides(inputs: list[Tensor], name: str = "w") -> list[Model]:
    return [{f"moment/{name}": x.T @ x / len(x)} for x in inputs]


def pooled(experts: list[Model], inputs: list[Tensor], weights: list[float]) -> Tensor:
    """The matrix whose outputs are nearest to the experts' own on all inputs at once."""
    rows = torch.cat([x * (w / len(x)) ** 0.5 for x, w in zip(inputs, weights, strict=True)])
    wanted = torch.cat(
        [
            x @ e["w"].double().T * (w / len(x)) ** 0.5
            for x, e, w in zip(inputs, experts, weights, strict=True)
        ]
    )
    found: Tensor = torch.linalg.lstsq(rows, wanted).solution.T
    return found


@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (6, 6)])
@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [1.0, 2.0, 0.3]])
def test_agrees_with_least_squares_on_the_pooled_inputs(weights: list[float], shape: tuple[int, int]) -> None:
    base, experts, inputs = world(3, shape=shape)
    got = apply(make("regmean", {"shrink": 1}), base, experts, weights, sides=sides(inputs))["w"]
    want = pooled(experts, inputs, weights)
    # Moments are held to 2^-40 of the largest; their condition is below 2^14.
    assert (got - want).abs().max() <= 2.0**-24 * want.abs().max()


def test_shrinking_is_more_weight_for_each_input_alone() -> None:
    """Off-diagonals times 0.95: as if a twentieth of the examples had but one input that is not 0."""
    base, experts, inputs = world(2)
    longer = []
    for x in inputs:
        alone = torch.diag((x * x).mean(0).sqrt()) * (8**0.5)  # second moment: the diagonal of x's
        longer.append(torch.cat([x.repeat(19, 1), alone.repeat(5, 1)]))
        assert len(longer[-1]) == 800
    got = apply(make("regmean"), base, experts, sides=sides(inputs))["w"]
    want = pooled(experts, longer, [1.0, 1.0])
    assert (got - want).abs().max() <= 2.0**-26 * want.abs().max()


def test_one_member_comes_back_where_its_inputs_reach() -> None:
    base, experts, inputs = world(1)
    got = apply(make("regmean"), base, experts, sides=sides(inputs))["w"]
    assert (got - experts[0]["w"]).abs().max() <= 1e-9
    few = [inputs[0][:3]]
    got = apply(make("regmean", {"shrink": 1}), base, experts, sides=sides(few))["w"]
    move = (got - base["w"]) @ few[0].T
    want = (experts[0]["w"] - base["w"]) @ few[0].T
    assert (move - want).abs().max() <= 2.0**-16 * want.abs().max()
    never = torch.linalg.svd(few[0])[2][3:]  # directions that no input has
    assert ((got - base["w"]) @ never.T).abs().max() <= 1e-8


def test_a_member_that_left_the_matrix_as_it_is_holds_it_by_its_inputs() -> None:
    base, experts, inputs = world(2)
    members = [experts[0], base]
    got = apply(make("regmean", {"shrink": 1}), base, members, sides=sides(inputs))["w"]
    want = pooled(members, inputs, [1.0, 1.0])
    assert (got - want).abs().max() <= 2.0**-24 * want.abs().max()
    assert torch.equal(apply(make("regmean"), base, [base, base], sides=sides(inputs))["w"], base["w"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_without_moments_a_matrix_is_averaged(dtype: str) -> None:
    base, experts, _ = world(3, dtype=getattr(torch, dtype))
    weights = [1.0, 0.3, 2.0]
    want = apply(make("average"), base, experts, weights)["w"]
    assert torch.equal(apply(make("regmean", {"ridge": 0.3}), base, experts, weights)["w"], want)
    want = apply(make("average"), base, [experts[0], base], weights[:2])["w"]
    assert torch.equal(apply(make("regmean"), base, [experts[0], base], weights[:2])["w"], want)


def test_moments_of_some_members_only_are_refused_and_fine_again_once_they_leave() -> None:
    base, experts, inputs = world(2)
    table = Table(make("regmean"), base)  # type: ignore[arg-type]
    table.enter(experts[0], 2.0**10, side=sides(inputs)[0])
    table.enter(experts[1], 2.0**-20)
    with pytest.raises(
        RefusedInput, match="have second moments of its inputs; compute them for every member"
    ):
        table.merged()
    table.leave(1)
    want = apply(make("regmean"), base, experts[:1], [2.0**10], sides=sides(inputs)[:1])["w"]
    assert torch.equal(table.merged()["w"], want)


def test_matrices_of_the_other_layout_take_moments_of_their_rows() -> None:
    base, experts, inputs = world(2)
    turned = [{"w": m["w"].T.contiguous()} for m in (base, *experts)]
    method = make("regmean", {"inputs_first": "^w$"})
    got = apply(method, turned[0], turned[1:], sides=sides(inputs))["w"]
    assert torch.equal(got.T, apply(make("regmean"), base, experts, sides=sides(inputs))["w"])


@pytest.mark.parametrize(
    ("side", "error", "message"),
    [
        (
            {"moment/w": torch.ones(5, 5)},
            RefusedInput,
            r"expert 0: moment/w is F32 \(5, 5\), expected .*\(8, 8\)",
        ),
        (
            {"moment/w": torch.ones(8, 8).half()},
            RefusedInput,
            r"moment/w is F16 \(8, 8\), expected F32 or F64",
        ),
        ({"moment/v": torch.ones(8, 8)}, UsageError, "expert 0: method regmean asks for no side moment/v"),
        ({"fisher/w": torch.ones(5, 8)}, UsageError, "asks for no side fisher/w"),
        ({"moment/w": torch.full((8, 8), float("nan"))}, NonFinite, "expert 0: tensor moment/w holds nan"),
        (
            {"moment/w": -torch.eye(8)},
            RefusedInput,
            "expert 0: w: a mean square of inputs is -1, expected 0 or",
        ),
    ],
)
def test_moments_that_cannot_be_are_refused(side: Any, error: type[Exception], message: str) -> None:
    base, experts, _ = world(1)
    with pytest.raises(error, match=message):
        apply(make("regmean"), base, experts, sides=[side])


def test_state_dicts_are_merged_with_sides() -> None:
    base, experts, inputs = world(2)
    got = merge_state_dicts(base, experts, "regmean", sides=sides(inputs))["w"]
    assert torch.equal(got, apply(make("regmean"), base, experts, sides=sides(inputs))["w"])
    with pytest.raises(UsageError, match="1 mappings of sides for 2 experts"):
        merge_state_dicts(base, experts, "regmean", sides=sides(inputs)[:1])
    with pytest.raises(UsageError, match="1 mappings of sides for 2 experts"):
        apply(make("regmean"), base, experts, sides=sides(inputs)[:1])


def test_wide_matrices_ask_for_no_moments() -> None:
    base, experts, inputs = world(2)
    with pytest.raises(UsageError, match="asks for no side"):
        apply(make("regmean", {"widest": 7}), base, experts, sides=sides(inputs))
    want = apply(make("average"), base, experts)["w"]
    assert torch.equal(apply(make("regmean", {"widest": 7}), base, experts)["w"], want)
