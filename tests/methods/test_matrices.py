"""Which tensors methods of matrices take apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from plait.errors import UsageError
from plait.methods.matrices import OfMatrices
from plait.methods.memory import apply
from plait.methods.registry import find, make, names
from tests.methods.matrices import Model, drawn

NAMES = [name for name in names() if issubclass(find(name), OfMatrices)]
KERNELS = {
    "k.weight": (12, 3, 2, 2),
    "point.weight": (7, 9, 1, 1),
    "deep.weight": (12, 1, 3, 3),
    "k.bias": (12,),
}
FEW: dict[str, dict[str, Any]] = {
    "wudi": {"steps": 3, "rate": 1e-2},
    "dop": {"steps": 3, "rate": 1e-2},
    "nufilt": {"rank": 4},
}


def flat(model: Model) -> Model:
    return {n: t.flatten(1) if n in ("k.weight", "point.weight") else t for n, t in model.items()}


def test_all_methods_of_matrices_are_meant() -> None:
    assert {"covariance", "dop", "iso_c", "iso_cts", "nufilt", "opcm", "tsv_m", "wudi"} <= set(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "regmean"])
def test_kernels_are_merged_as_their_matrices(name: str) -> None:
    base, experts = drawn(3, shapes=KERNELS)
    options = FEW.get(name, {})
    want = apply(make(name, options), flat(base), [flat(e) for e in experts])
    got = apply(make(name, {**options, "convolutions": True}), base, experts)
    plain = apply(make(name, options), base, experts)
    for tensor in base:
        assert got[tensor].shape == base[tensor].shape
        assert torch.equal(flat(got)[tensor], want[tensor])
    for tensor in ("k.weight", "point.weight"):
        assert (got[tensor] - plain[tensor]).abs().max() > 1e-4
    if name != "opcm":  # whose scale is one for all tensors
        assert torch.equal(got["deep.weight"], plain["deep.weight"])


@pytest.mark.parametrize("name", NAMES)
def test_the_option_is_true_or_false(name: str) -> None:
    with pytest.raises(UsageError, match="convolutions is 'some', expected true or false"):
        make(name, {"convolutions": "some"})


def test_a_name_keeps_a_kernel_out() -> None:
    base, experts = drawn(2, shapes=KERNELS)
    got = apply(make("iso_c", {"convolutions": True, "tables": r"^k\."}), base, experts)
    plain = apply(make("iso_c"), base, experts)
    assert torch.equal(got["k.weight"], plain["k.weight"])
    assert not torch.equal(got["point.weight"], plain["point.weight"])


def test_kernels_that_are_no_matrices_are_told() -> None:
    shapes = {
        "k": (4, 3, 2, 2),
        "deep": (4, 1, 3, 3),
        "w": (4, 3),
        "embed.k": (4, 3, 2, 2),
        "none": (0, 3, 2, 2),
    }
    for method in (make("covariance"), make("iso_c", {"scale": "w:0.5; 1"})):
        assert method.idle(shapes) == [
            "kernels of convolutions that are not merged as matrices: 2; convolutions=true does so"
        ]
    assert make("covariance", {"convolutions": True}).idle(shapes) == []
    assert make("opcm", {"convolutions": True}).idle({"w": (4, 3), "deep": (4, 1, 3, 3)}) == [
        "convolutions: there is no kernel that is merged as a matrix"
    ]
    assert make("average").idle(shapes) == []
    one = make("covariance", {"tables": "^k"})
    assert one.idle(shapes) == [
        "kernels of convolutions that are not merged as matrices: 1; convolutions=true does so"
    ]
    assert make("covariance", {"convolutions": True, "tables": "k"}).idle(shapes) == [
        "convolutions: there is no kernel that is merged as a matrix"
    ]


def test_matrices_that_are_too_wide_are_told() -> None:
    shapes = {"k": (4, 3, 2, 2), "w": (4, 3), "wide": (2, 13), "embed": (100, 13)}
    few = make("covariance", {"widest": 10})
    assert few.idle({"w": (4, 3)}) == []
    assert few.idle({"wide": (2, 13), "embed": (100, 13)}) == []  # the other side is short enough
    assert make("regmean", {"widest": 10, "convolutions": True}).idle(shapes) == [
        "convolutions: there is no kernel that is merged as a matrix",
        "matrices wider than widest=10, which are averaged: 2",
    ]
    assert make("regmean", {"widest": 0}).idle(shapes) == []
    assert make("regmean", {"widest": "wide:1; 4096"}).idle(shapes) == []  # chosen tensor by tensor
    assert make("regmean", {"widest": 10, "scale": "wide:0.5; 1"}).idle({"wide": (2, 13), "b": (2,)}) == [
        "matrices wider than widest=10, which are averaged: 1"
    ]


@pytest.mark.parametrize("name", ["iso_c", "opcm"])
def test_the_tables_that_come_by_default_are_no_kernels(name: str) -> None:
    """The convolution that embeds the patches of an image, in a vision transformer."""
    base, experts = drawn(2, shapes={"patch_embed.proj.weight": (8, 3, 4, 4), "embed.weight": (9, 8)})
    flattened = drawn(2, shapes={"proj.weight": (8, 48), "embed.weight": (9, 8)})
    got = apply(make(name, {"convolutions": True}), base, experts)
    want = apply(make(name), flattened[0], flattened[1])
    assert torch.equal(got["patch_embed.proj.weight"].flatten(1), want["proj.weight"])
    assert torch.equal(got["embed.weight"], want["embed.weight"])
    kept = apply(make(name, {"convolutions": True, "tables": "^patch|^embed"}), base, experts)
    plain = apply(make(name), base, experts)
    assert torch.equal(kept["patch_embed.proj.weight"], plain["patch_embed.proj.weight"])


def test_tsv_m_averages_narrow_matrices_by_weight() -> None:
    base, experts = drawn(3, shapes={"w": (2, 9), "b": (9,)})
    weights = [1.0, 2.0, 0.5]
    got = apply(make("tsv_m"), base, experts, weights)
    for name, tensor in base.items():
        moved = sum((w * (e[name] - tensor) for w, e in zip(weights, experts, strict=True)), torch.zeros(()))
        assert torch.allclose(got[name] - tensor, moved / 3.5, rtol=1e-12, atol=0)
