"""Numbers by patterns of names and by depth: what each tensor gets, how rules are written, and what is no rule."""

from __future__ import annotations

from typing import Any

import pytest

from plait.errors import UsageError
from plait.methods.registry import find, make
from plait.methods.rules import layers_of, read
from plait.methods.varied import member_weight, rule_options

NAMES = [
    "model.embed.weight",
    "model.layers.0.mlp.weight",
    "model.layers.1.mlp.experts.5.weight",
    "model.layers.3.attn.weight",
    "vision.blocks.0.weight",
    "head.weight",
]


def at(value: Any, name: str) -> float:
    rules = read("scale", value, 7.0)
    assert rules is not None
    return rules.over(NAMES, "scale").at(name)


def test_the_first_pattern_that_matches_a_whole_name_counts() -> None:
    text = "*.mlp.*:0.25; model.*:2; head:3; 5"
    assert [at(text, name) for name in NAMES] == [2, 0.25, 0.25, 2, 5, 5]
    assert at("*.mlp.*:0.25", "head.weight") == 7  # what the option is by default


def test_anchors_are_joined_by_lines_over_the_layers_as_in_mergekit() -> None:
    # depth 0 without a number, l / 3 in four layers, 1 in the only layer of a group
    wanted = [0.0, 0.0, 1 / 3, 1.0, 1.0, 0.0]
    assert [at([0, 1], name) for name in NAMES] == pytest.approx(wanted, abs=1e-15)
    three = [at("0..10..40", name) for name in NAMES]
    assert three == pytest.approx([0, 0, 20 / 3, 40, 40, 0], abs=1e-14)
    assert at("3..3..9", "model.layers.1.mlp.experts.5.weight") == 3  # exactly, between equal anchors
    assert at("*.mlp.*:0..3; 8", "model.layers.1.mlp.experts.5.weight") == 1
    assert at("4..5", "nothing") == 4


def test_the_layers_of_a_model() -> None:
    assert layers_of(NAMES) == (("model.layers", 4), ("vision.blocks", 1))
    assert layers_of(["0.weight", "2.weight"]) == (("", 3),)
    assert layers_of(["layer1.weight", "conv.2"]) == ()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("*.mlp.*:0.5;1", "*.mlp.*:0.5; 1"),
        (" *.mlp.* : 0.5 ", "*.mlp.*:0.5; 7"),
        ({"a": 1, "b": [0.1, 1e-9], "*": "2..3"}, "a:1; b:0.1..1e-09; 2..3"),
        ("-1..2.5@b=2,a=12", "-1..2.5@a=12,b=2"),
        ("a:0..1@=3; 0", "a:0..1@=3; 0"),
    ],
)
def test_rules_have_one_form(value: Any, text: str) -> None:
    rules = read("scale", value, 7.0)
    assert rules is not None
    assert rules.text == text
    assert read("scale", text, 7.0) == rules


@pytest.mark.parametrize("value", [1, 0.5, "0.5", "1e-3", None, True, "heavy"])
def test_plain_values_are_no_rules(value: Any) -> None:
    assert read("scale", value) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a:x", "scale has 'x' where a number is expected, or numbers such as 0.2..0.8"),
        ("1...x", "scale has '.x' where a number"),
        ("a:nan", "scale has 'nan' where a number"),
        ([True], "scale has True where a number"),
        ([], "scale has no number"),
        ("1; a:2", "what comes after the value for all names never counts; put it last"),
        ("*:1; a:2", "never counts; put it last"),
        ({"a;b": 1}, "scale has pattern 'a;b', expected one such as *.mlp.*, without ; and :"),
        (":1", "scale has pattern ''"),
        ("0..1@layers", "expected layers after @ such as model.layers=12"),
    ],
)
def test_what_is_no_rule_is_refused(value: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read("scale", value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (
            "opcm",
            {"share": [0, 1]},
            "share differs from tensor to tensor, and method opcm scales by the norms",
        ),
        ("mdm_oc", {"alpha": [0, 1]}, "method mdm_oc weighs whole task vectors"),
        ("trm", {"steps": [1, 2]}, "method trm sees all tensors at once"),
        ("ties", {"trim": "model", "scale": "a:1; 2"}, "method ties with trim=model ranks magnitudes over"),
        ("ties", {"zero": "majority", "scale": "a:1; 2"}, "method ties with zero=majority counts signs over"),
        ("ties", {"fit": "cmaes", "scale": "a:1; 2"}, "method ties with a fit has one number for all"),
        ("ties", {"density": "a:x"}, "density has 'x' where a number is expected"),
        ("ties", {"trim": "a:1; 2"}, "trim is 'a:1; 2', expected one of: tensor, model"),
        ("average", {"sparsify": "dare", "sparsify.density": "a:x"}, "sparsify.density has 'x' where"),
    ],
)
def test_what_cannot_differ_from_tensor_to_tensor_is_refused(
    method: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        make(method, options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"density": "head.*:2; 1"}, "density is 2.0, expected a number from 0 to 1"),
        ({"density": [0, 1.5]}, "density is 1.5, expected"),
        (
            {"sparsify": "della", "sparsify.density": "head.*:1; 0.5"},
            "sparsify.spread is 0.2, expected 0 to 0",
        ),
    ],
)
def test_numbers_are_checked_for_every_tensor_of_the_base(options: dict[str, Any], message: str) -> None:
    method = make("ties", options)
    with pytest.raises(UsageError, match=message.replace(".", r"\.")):
        method.over(NAMES)


def test_one_anchor_is_a_plain_number() -> None:
    options = {"density": [0.25], "scale": {"*": 2}, "sparsify": "dare", "sparsify.density": [0.5]}
    assert make("ties", options) == make("ties", {"density": 0.25, "scale": 2, "sparsify": "dare"})
    assert member_weight([2], make("opcm"), NAMES) == 2.0


def test_depth_needs_layers() -> None:
    with pytest.raises(
        UsageError, match=r"scale is 0\.\.1, and no tensor of the base has the number of a layer"
    ):
        make("magmax", {"scale": [0, 1]}).over(["a.weight"])


def test_what_counts_for_no_tensor_is_told() -> None:
    method = make("ties", {"density": "*.mlp.*:1; model.layers.0.mlp.weight:0.5; typo.*:0.5; 1"})
    assert method.idle(dict.fromkeys(NAMES, (2, 2))) == [
        "density: no tensor is left for pattern model.layers.0.mlp.weight",
        "density: no tensor is left for pattern typo.*",
    ]


def test_weights_of_members() -> None:
    plain = make("average")
    assert member_weight(2, plain, NAMES) == 2.0
    text = member_weight("*.mlp.*:0; 0.5..1", plain, NAMES)
    assert text == "*.mlp.*:0; 0.5..1@model.layers=4,vision.blocks=1"
    for given, message in (
        ("*.mlp.*:-1; 1", "weight is -1"),
        ("model.*:0; vision.*:0; head.*:0; 1", "which is 0 for every tensor"),
        ("*:0", "weight is 0 for every tensor; leave the member out"),
        ([1e-7, 1], "weight is 1e-07"),
    ):
        with pytest.raises(UsageError, match=message):
            member_weight(given, plain, NAMES)
    with pytest.raises(UsageError, match="weight differs from tensor to tensor, and method opcm"):
        member_weight([1, 2], make("opcm"), NAMES)


def test_which_options_may_differ() -> None:
    assert rule_options(find("ties")) == ["density", "scale"]
    assert rule_options(find("slerp")) == ["t"]
    assert rule_options(find("opcm")) == rule_options(find("mdm_oc")) == rule_options(find("trm")) == []


def test_whole_numbers_between_anchors_are_whole() -> None:
    names = [f"layers.{i}.mlp.weight" for i in range(4)]
    for text, wanted in (("1..10", [1, 4, 7, 10]), ("4..1", [4, 3, 2, 1])):
        rules = read("steps", text)
        assert rules is not None
        assert [rules.over(names, "steps").at(name) for name in names] == wanted
    with pytest.raises(
        UsageError,
        match=r"rank is 3\.33.*expected a whole number.*: that is what layers\.1\..* gets from rank 1\.\.8",
    ):
        make("nufilt", {"rank": "1..8"}).over(names)
