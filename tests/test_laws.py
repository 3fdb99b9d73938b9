"""The shipped laws on every registered method, and proof that each law can fail."""

from __future__ import annotations

from typing import Any

import pytest

from plait.methods.registry import make, names
from plait.testing import check

SETS: list[tuple[str, dict[str, Any], bool | None]] = [
    ("average", {}, True),
    ("average", {"sparsify": "dare"}, None),
    ("average", {"sparsify": "dare", "sparsify.density": 1}, True),
    ("average", {"sparsify": "della", "sparsify.density": 0.3, "sparsify.spread": 0.4}, None),
    ("average", {"sparsify": "breadcrumbs"}, None),
    ("task_arithmetic", {"scale": 1}, True),
    ("task_arithmetic", {"scale": 0.3}, None),
    ("task_arithmetic", {"scale": 1, "sparsify": "dare", "sparsify.density": 0.3}, None),
    ("ties", {"density": 1}, True),
    ("ties", {"density": 0.2}, None),
    (
        "ties",
        {"trim": "model", "disjoint": "sum", "scale": 0.3, "kept": "inclusive", "zero": "majority"},
        None,
    ),
    ("ties", {"sparsify": "della", "density": 0.4}, None),
    ("ties", {"sparsify": "breadcrumbs", "trim": "model"}, None),
    ("average", {"sparsify": "dare", "sparsify.density": "*.bias:1; blocks.*:0.2..0.9; 0.5"}, None),
    ("task_arithmetic", {"scale": "head.*:0; *.weight:0.2..1..0.4; 1"}, None),
    ("task_arithmetic", {"scale": "*.bias:1;1", "sparsify": "breadcrumbs", "sparsify.gamma": "0..0.1"}, None),
    ("ties", {"density": [0.1, 0.9], "scale": {"head.*": 0.5, "*": 1}}, None),
    ("ties", {"density": "blocks.1.*:1; 0.3", "sparsify": "della", "sparsify.spread": "*.bias:0; 0.4"}, None),
    ("model_stock", {"sparsify": "della", "sparsify.density": "head.*:0.9; 0.4..0.6"}, None),
    ("covariance", {"ridge": "head.*:0.1; 0", "widest": "blocks.*:0; 64"}, None),
    ("magmax", {"scale": "blocks.*:0.2..0.9; 1"}, None),
    ("tsv_m", {"scale": [0.2, 1.0]}, None),
    ("nufilt", {"rank": "head.*:2; 4"}, None),
    ("nufilt", {"sketch": True, "rank": 1, "tables": ""}, True),
    ("tsv_m", {"sketch": True, "tables": ""}, True),
    ("slerp", {"t": [0.0, 0.5, 1.0]}, None),
    ("magmax", {"scale": 1}, True),
    ("magmax", {}, None),
    ("model_stock", {}, True),
    ("model_stock", {"clamp": False, "sparsify": "della"}, None),
    ("covariance", {}, None),
    ("covariance", {"ridge": 0, "side": "smaller", "flatten": 0.5, "tables": "", "widest": 20}, None),
    ("covariance", {"side": "out", "sparsify": "della", "scale": 0.7}, None),
    ("covariance", {"widest": 0}, True),
    ("regmean", {}, None),
    ("regmean", {"ridge": 0.1, "shrink": 1, "flatten": 1, "inputs_first": "head", "sparsify": "dare"}, None),
    ("regmean", {"widest": 0}, True),
    *((name, {"convolutions": True}, None) for name in ("covariance", "iso_c", "iso_cts", "regmean", "wudi")),
    *((name, {"convolutions": True}, True) for name in ("dop", "nufilt", "opcm", "tsv_m")),
    ("fisher", {}, None),
    ("fisher", {"epsilon": 1e-9, "sparsify": "breadcrumbs"}, None),
    ("opcm", {}, True),
    ("opcm", {"variant": "diagonal", "share": 0.8}, True),
    ("opcm", {"share": 1, "tables": ""}, True),
    ("tsv_m", {}, True),
    ("tsv_m", {"scale": 0.7, "tables": ""}, None),
    ("iso_c", {"sparsify": "della"}, None),
    ("iso_c", {"tables": ".", "scale": 1}, True),
    ("iso_cts", {"inputs_first": "head", "common": 0.5}, None),
    ("nufilt", {}, True),
    ("nufilt", {"recover": True, "rank": 3, "inputs_first": "head", "tables": ""}, True),
    ("wudi", {"steps": 5}, True),
    ("wudi", {"steps": 3, "rate": 1e-3, "scale": 0.7, "tables": "", "inputs_first": "head"}, None),
    ("dop", {"steps": 5}, True),
    ("dop", {"steps": 3, "share": 0.5, "decay": 0.5, "rate": 1e-3, "tables": ""}, True),
    ("slerp", {}, True),
    ("slerp", {"t": 0.3, "updates": True}, True),
    ("mdm_oc", {}, None),
    ("mdm_oc", {"alpha": 1}, True),
    ("mdm_oc", {"granularity": "layer", "alpha": 1}, True),
    ("mdm_oc", {"granularity": "tensor", "dependent": "skip"}, None),
    ("mdm_oc", {"rank": 2}, None),
]


def _label(case: tuple[str, dict[str, Any], bool | None]) -> str:
    return " ".join([case[0], *(f"{k}={v}" for k, v in case[1].items())])


@pytest.mark.parametrize("case", SETS, ids=_label)
def test_method_obeys_the_laws(case: tuple[str, dict[str, Any], bool | None]) -> None:
    name, options, gives_back = case
    check(make(name, options), gives_back=gives_back)


WITH_LOSSES = {"ode_m", "trm"}
"""Methods that need a problem; their own tests hand one in."""


@pytest.mark.parametrize("name", sorted(set(names()) - {case[0] for case in SETS} - WITH_LOSSES))
def test_every_other_registered_method_obeys_the_laws_as_it_comes(name: str) -> None:
    check(make(name))
