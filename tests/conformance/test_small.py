"""FusionBench's methods that look at data, and slerp, on the small network of small.py: only `make conformance` runs
them. Errors are shares of a tensor's largest element, of FusionBench's result."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from plait.methods.memory import apply
from plait.methods.registry import make
from plait.problem.base import Examples
from plait.problem.moments import second_moments
from plait.problem.objective import Objective
from tests.conformance.small import EXAMPLES, LENGTH, TASKS, Model, Small, one_logit_loss
from tests.conformance.test_peers import ROOT
from tests.problem.nets import Toy

if not (ROOT / "small").is_dir():
    pytest.skip("only `make conformance` makes these files", allow_module_level=True)

FLOATS = {"float64": torch.float64, "float32": torch.float32}
SLACK = {"float64": 1e-7, "float32": 1e-5}
PLAIN = "plain"
TURNED = {"inputs_first": "lift|mix|head"}
every = pytest.mark.parametrize("kind", FLOATS)


class Net(Toy):
    """The small network as plait runs it."""

    def __init__(self, network: str, kind: str) -> None:
        super().__init__(lambda: Small(network), FLOATS[kind])
        self.names = {own: own for own in self.names.values()}

    def collate(self, encoded: Any) -> Tensor:
        return torch.stack(list(encoded))


@cache
def read(name: str) -> Model:
    return load_file(ROOT / "small" / f"{name}.safetensors")


def inputs(network: str, kind: str) -> list[Model]:
    """The base and the experts."""
    names = ("base", *(f"task_{i}" for i in range(TASKS)))
    return [{n: t.to(FLOATS[kind]) for n, t in read(f"{network}/{name}").items()} for name in names]


def objective(network: str, kind: str, task: int) -> Objective:
    data = read(f"{network}/data_{task}")
    return Objective(Net(network, kind), None, Examples(data["tokens"], data["labels"], "made up"))


def worst(got: Model, want: Model) -> float:
    assert set(got) == set(want)
    return max(float((got[n] - t).abs().max() / t.abs().max()) for n, t in want.items())


def found(network: str, kind: str, method: str, side: str) -> list[Model]:
    """What FusionBench computed from each task's data, as sides."""
    each = [read(f"{network}/{kind}/{method}_task_{i}") for i in range(TASKS)]
    return [{f"{side}/{n}": t for n, t in one.items()} for one in each]


def merged(
    method: str, options: dict[str, Any], network: str, kind: str, sides: list[Model], **more: Any
) -> Model:
    base, *experts = inputs(network, kind)
    return apply(make(method, options), base, experts, sides=sides, **more)


# RegMean


@every
@pytest.mark.parametrize("network", ["plain", "padded", "turned"])
def test_second_moments_are_the_means_that_regmean_takes(network: str, kind: str) -> None:
    """Without a mask, padding is a token like others on both sides."""
    for task, expert in enumerate(inputs(network, kind)[1:]):
        ours = second_moments(objective(network, kind, task), expert)
        theirs = read(f"{network}/{kind}/regmean_task_{task}")
        assert set(ours) == set(theirs) == {"lift.weight", "mix.weight", "head.weight"}
        for name, moment in ours.items():
            assert moment.count == EXAMPLES * (1 if name == "head.weight" else LENGTH)
            assert moment.inputs_first == (network == "turned")
            error = moment.matrix / moment.count - theirs[name]
            assert error.abs().max() <= SLACK[kind] / 10 * theirs[name].abs().max()


@every
@pytest.mark.parametrize("network", ["plain", "padded", "turned"])
def test_regmean(network: str, kind: str) -> None:
    """Least squares with a condition of 1e6: in fp32 FusionBench's inverse is off by 1e-4 of a matrix, so its own
    rule in fp64 is the judge there."""
    options = {"shrink": 1.0, **(TURNED if network == "turned" else {})}
    got = merged("regmean", options, network, kind, found(network, kind, "regmean", "moment"))
    theirs, judge = read(f"{network}/{kind}/regmean"), regmean(network, kind, 1.0)
    assert worst(theirs, judge) <= (1e-8 if kind == "float64" else 1e-3)
    assert worst(got, judge) <= max(SLACK[kind], worst(theirs, judge))
    if kind == "float64":
        assert worst(got, theirs) <= SLACK[kind]


@every
@pytest.mark.parametrize(("file", "ratio"), [("regmean_half", 0.5), ("regmean_0.95", 0.95)])
def test_regmean_with_smaller_off_diagonals(file: str, ratio: float, kind: str) -> None:
    """FusionBench has the ratio in fp32, whatever the dtype of the models."""
    got = merged("regmean", {"shrink": ratio}, PLAIN, kind, found(PLAIN, kind, file, "moment"))
    assert worst(got, read(f"{PLAIN}/{kind}/{file}")) <= max(SLACK[kind], 2e-7)
    assert worst(got, regmean(PLAIN, kind, ratio)) <= SLACK[kind]
    other = merged("regmean", {"shrink": ratio * 0.99}, PLAIN, kind, found(PLAIN, kind, file, "moment"))
    assert worst(other, read(f"{PLAIN}/{kind}/{file}")) > 1e-3


def regmean(network: str, kind: str, ratio: float) -> Model:
    """FusionBench's rule in fp64, on the moments that it found."""
    _, *experts = (({n: t.double() for n, t in m.items()}) for m in inputs(network, kind))
    moments = found(network, kind, "regmean", "moment")
    out = {}
    for name in experts[0]:
        values = torch.stack([e[name] for e in experts])
        side = f"moment/{name}"
        if side not in moments[0]:
            out[name] = values.mean(0)
            continue
        squares = torch.stack([m[side].double() for m in moments])
        squares = squares * ratio + torch.diag_embed(squares.diagonal(dim1=1, dim2=2)) * (1 - ratio)
        values = values if network == "turned" else values.mT
        solved = torch.linalg.solve(squares.sum(0), (squares @ values).sum(0))
        out[name] = solved if network == "turned" else solved.T
    return out


@every
def test_inputs_that_are_always_0_end_fusionbench_and_leave_our_base(kind: str) -> None:
    assert "singular" in (ROOT / "small" / "empty" / kind / "regmean.txt").read_text()
    base, *experts = inputs("empty", kind)
    sides = []
    for task, expert in enumerate(experts):
        each = second_moments(objective("empty", kind, task), expert)
        assert not each["lift.weight"].matrix[0].any()
        sides.append({f"moment/{n}": m.matrix / m.count for n, m in each.items()})
    got = apply(make("regmean", {"shrink": 1.0}), base, experts, sides=sides)
    assert torch.equal(got["lift.weight"][:, 0], base["lift.weight"][:, 0])
    assert not torch.equal(got["lift.weight"][:, 1], base["lift.weight"][:, 1])


# Fisher


@every
def test_fisher_merging_on_the_same_information(kind: str) -> None:
    """Where nobody knows anything of an element FusionBench has 0 / 0; ours stays at the base."""
    base = inputs(PLAIN, kind)[0]
    got = merged("fisher", {}, PLAIN, kind, found(PLAIN, kind, "fisher", "fisher"))
    want = read(f"{PLAIN}/{kind}/fisher")
    holes = {n: t.isnan() for n, t in want.items()}
    assert sum(int(h.sum()) for h in holes.values()) == int(holes["embedding.weight"].sum()) > 0
    for name, hole in holes.items():
        assert torch.equal(got[name][hole], base[name][hole])
        error = (got[name] - want[name])[~hole].abs().max()
        assert error <= SLACK[kind] * want[name][~hole].abs().max(), name


@every
@pytest.mark.parametrize("network", ["plain", "labelled"])
def test_fisher_merging_with_normalised_information(network: str, kind: str) -> None:
    """Its normalisation is a weight for each member: the inverse norm of all its information."""
    least, base = 1e-6, inputs(network, kind)[0]
    if network == PLAIN:
        known = found(network, kind, "fisher_normalized", "fisher")
    else:
        known = [{f"fisher/{n}": t for n, t in one.items()} for one in of_labels(kind)]
    norms = [sum(float(t.double().square().sum()) for t in one.values()) ** 0.5 for one in known]
    raised = [{n: t + least for n, t in one.items()} for one in known]
    weights = [min(norms) / (norm + least) for norm in norms]
    got = merged("fisher", {}, network, kind, raised, weights=weights)
    assert worst(got, read(f"{network}/{kind}/fisher_normalized")) <= max(SLACK[kind], 1e-6)
    assert worst(got, base) > 1e-2


def of_labels(kind: str) -> list[Model]:
    """The information of the labels that are given, for a network of one logit, in the sum over examples' form that
    FusionBench divides by their number."""
    out = []
    for task, expert in enumerate(inputs("labelled", kind)[1:]):
        module = Small("labelled").to(FLOATS[kind])
        module.load_state_dict(expert)
        data = read(f"labelled/data_{task}")
        total: Model = {}
        for row in range(EXAMPLES):
            loss = one_logit_loss(module(data["tokens"][row : row + 1]), data["labels"][row : row + 1])
            for (name, _), slope in zip(
                module.named_parameters(), torch.autograd.grad(loss, list(module.parameters())), strict=True
            ):
                total[name] = total.get(name, torch.zeros(())) + slope**2 / EXAMPLES
        out.append(total)
    return out


@every
def test_fisher_information_of_given_labels(kind: str) -> None:
    """FusionBench's own rule for one logit, on single examples, is the mean of squared gradients that ours is."""
    got = merged(
        "fisher", {}, "labelled", kind, [{f"fisher/{n}": t for n, t in m.items()} for m in of_labels(kind)]
    )
    want, base = read(f"labelled/{kind}/fisher"), inputs("labelled", kind)[0]
    for name, tensor in want.items():
        hole = tensor.isnan()
        assert torch.equal(got[name][hole], base[name][hole])
        assert (got[name] - tensor)[~hole].abs().max() <= max(SLACK[kind], 1e-6) * tensor[~hole].abs().max()


@pytest.mark.parametrize("task", range(TASKS))
def test_fisher_information_over_classes_is_another_thing_there(task: int) -> None:
    """FusionBench squares the gradient of the sum over examples and classes of sqrt(p) log p, in which slopes of
    different classes and examples cancel; written out, that rule gives its numbers, and ours does not."""
    kind = "float64"
    theirs = read(f"{PLAIN}/{kind}/fisher_task_{task}")
    expert = inputs(PLAIN, kind)[1 + task]
    module = Small(PLAIN).double()
    module.load_state_dict(expert)
    total = {n: torch.zeros_like(p) for n, p in module.named_parameters()}
    for tokens in torch.split(read(f"{PLAIN}/data_{task}")["tokens"], 16):
        logs = module(tokens).log_softmax(-1)
        slopes = torch.autograd.grad(((logs / 2).exp().detach() * logs).sum(), list(module.parameters()))
        for name, slope in zip(total, slopes, strict=True):
            total[name] += slope**2 / EXAMPLES
    ours = objective(PLAIN, kind, task).fisher(expert, labels="model")
    for name, tensor in theirs.items():
        assert (total[name] - tensor).abs().max() <= 1e-12 * tensor.abs().max(), name
        assert (ours[name] - tensor).abs().max() > 0.1 * tensor.abs().max(), name


# Without data


@every
def test_slerp(kind: str) -> None:
    base, *experts = inputs(PLAIN, kind)
    got = apply(make("slerp", {"t": 0.3}), base, [experts[0], experts[2]])
    assert worst(got, read(f"{PLAIN}/{kind}/slerp")) <= SLACK[kind]
    got = apply(make("slerp", {"t": 0.3}), base, [base, experts[1]])
    assert worst(got, read(f"{PLAIN}/{kind}/slerp_base")) <= SLACK[kind]


@every
def test_weighted_average(kind: str) -> None:
    base, *experts = inputs(PLAIN, kind)
    got = apply(make("average"), base, experts, [0.5, 2.0, 1.5])
    assert worst(got, read(f"{PLAIN}/{kind}/weighted_average")) <= SLACK[kind]


@every
def test_a_weighted_sum_scales_the_base_too(kind: str) -> None:
    """FusionBench's weighted average without normalisation adds the models up, the base four times here; a sum of
    task vectors with these weights is another model."""
    base, *experts = inputs(PLAIN, kind)
    got = apply(make("task_arithmetic", {"scale": 1.0}), base, experts, [0.5, 2.0, 1.5])
    want = read(f"{PLAIN}/{kind}/weighted_sum")
    assert worst({n: t + 3 * base[n] for n, t in got.items()}, want) <= SLACK[kind]
