"""Methods with options, as a benchmark's command line names them."""

from __future__ import annotations

import pytest

from plait.bench.specs import parse
from plait.errors import UsageError


def test_words_in_any_order_have_one_label() -> None:
    one = parse("mdm_oc granularity=layer fit=gradient")
    assert one == parse("mdm_oc   fit=gradient granularity=layer")
    assert one.label == "mdm_oc fit=gradient granularity=layer"
    assert one.words()["granularity"] == "layer"
    assert one.words()["fit"]["name"] == "gradient"
    assert parse("ties").label == "ties"


def test_what_looks_at_data() -> None:
    found = {
        text: (parse(text).looks, parse(text).whole)
        for text in ("ties", "ties fit=cmaes", "regmean", "mdm_oc", "trm", "ties_recursive")
    }
    assert found == {
        "ties": (False, False),
        "ties fit=cmaes": (True, True),
        "regmean": (True, True),
        "mdm_oc": (False, False),
        "trm": (True, True),
        "ties_recursive": (False, True),
    }


@pytest.mark.parametrize(
    "wrong", ["mdm_oc granularity", "mdm_oc =layer", "nobody", "ties density=2", "ties dense=1"]
)
def test_wrong_words(wrong: str) -> None:
    with pytest.raises(UsageError):
        parse(wrong)
