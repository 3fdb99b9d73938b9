"""Key accounting: every tensor of both sides is in exactly one class, or the expert is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from plait.checkpoint.digest import root_digest
from plait.checkpoint.format import hash_tensor, read_bytes
from plait.checkpoint.keys import Accounting, account, matcher
from plait.checkpoint.layout import Checkpoint, open_checkpoint
from plait.checkpoint.names import canonical_names, map_names, suggest
from plait.errors import FormatError, KeyMismatch
from tests.checkpoint.files import file, folder, numbers

Table = dict[str, Any]

EMBEDDING = "embeddings.word_embeddings.weight"
ENCODER: Table = {
    EMBEDDING: numbers(11, 4),
    "encoder.0.dense.weight": numbers(4, 4),
    "encoder.0.dense.bias": np.zeros(4, "float32"),
    "encoder.1.dense.weight": numbers(4, 4, seed=1),
    "encoder.1.dense.bias": np.zeros(4, "float32"),
    "norm.weight": np.ones(4, "float32"),
    "position_ids": np.arange(7),
}


def moved(table: Table, **changes: Any) -> Table:
    """Another checkpoint of the same model: float tensors are others, `changes` replace (None removes)."""
    found = {
        n: a + numbers(*a.shape, seed=9).astype(a.dtype) if a.dtype.kind == "f" else a
        for n, a in table.items()
    }
    return {n: a for n, a in (found | changes).items() if a is not None}


def opened(path: Path, table: Table, config: Table | None = None) -> Checkpoint:
    return open_checkpoint(folder(path, table, config))


def check(base: Checkpoint, expert: Checkpoint, found: Accounting) -> None:
    """The law: every tensor of both inputs is in exactly one class, and the classes are what the maps say."""
    assert found.of_base.keys() == base.tensors.keys()
    assert found.of_expert.keys() == expert.tensors.keys()
    for name, kind in found.of_base.items():
        homes = {"merged": name in found.merge, "buffer": name in found.buffers, "tied": name in found.tied}
        assert [home for home, there in homes.items() if there] == ([] if kind == "kept" else [kind])
    spans = {(ref.file, ref.start, ref.end): name for name, ref in expert.tensors.items()}
    reached: dict[str, set[str]] = {name: set() for name in expert.tensors}
    for kind, table in (("merged", found.merge), ("buffer", found.buffers), ("private", found.private)):
        for name, ref in table.items():
            assert ref.name == name
            reached[spans[ref.file, ref.start, ref.end]].add(kind)
    for name, kind in found.of_expert.items():
        if kind == "tied":
            assert not reached[name]
        elif expert.tensors[name].nbytes:
            assert reached[name] == {kind}
    for name, ref in found.merge.items():
        assert ref.shape == base.tensors[name].shape
    rows = {found.names[name]: hash_tensor(ref) for name, ref in found.stored.items()}
    assert root_digest(rows) == root_digest(expert.digests())
    assert found.duplicates.keys() == {n for n in found.names if found.of_expert[found.names[n]] == "tied"}


def fits(base: Checkpoint, expert: Checkpoint, private: tuple[str, ...] = ()) -> Accounting:
    found = account(base, expert, private)
    check(base, expert, found)
    return found


def refused(base: Checkpoint, expert: Checkpoint, private: tuple[str, ...] = ()) -> KeyMismatch:
    with pytest.raises(KeyMismatch) as caught:
        account(base, expert, private)
    text = str(caught.value)
    assert "does not fit the base in" in text
    assert expert.path in text
    assert text.isprintable()
    assert caught.value.exit_code == 5
    return caught.value


def test_a_plain_expert(tmp_path: Path) -> None:
    base, expert = opened(tmp_path / "b", ENCODER), opened(tmp_path / "e", moved(ENCODER))
    found = fits(base, expert)
    assert found.counts == {"merged": 6, "buffer": 1, "private": 0}
    assert set(found.buffers) == {"position_ids"}
    assert found.notes == ()
    assert read_bytes(found.merge["norm.weight"]) == read_bytes(expert.tensors["norm.weight"])


def test_a_head_is_refused_with_the_option_that_keeps_it_apart(tmp_path: Path) -> None:
    head = {"classifier.weight": numbers(2, 4), "classifier.bias": numbers(2), "scale": numbers(1)}
    base, expert = opened(tmp_path / "b", ENCODER), opened(tmp_path / "e", moved(ENCODER) | head)
    error = refused(base, expert)
    assert "classifier.weight: F32 (2, 4) is in the expert, not in the base" in str(error)
    assert "--private 'classifier.*'" in str(error)
    assert "--private 'scale'" in str(error)
    assert len(error.problems) == 3
    found = fits(base, expert, ("classifier.*", "scale"))
    assert set(found.private) == set(head)
    assert refused(base, expert, ("classifier.*",)).problems == (
        "scale: F32 (1,) is in the expert, not in the base",
    )


def test_names_behind_one_prefix_are_fitted_and_the_head_stays(tmp_path: Path) -> None:
    longer = {f"bert.{n}": a for n, a in moved(ENCODER).items()}
    base = opened(tmp_path / "b", ENCODER)
    expert = opened(tmp_path / "e", longer | {"classifier.weight": numbers(2, 4)})
    found = fits(base, expert, ("classifier.*",))
    assert found.counts == {"merged": 6, "buffer": 1, "private": 1}
    assert found.notes == ("prefix 'bert.' of the expert's names was removed",)
    assert (found.removed, found.added) == ("bert.", "")
    assert found.names["norm.weight"] == "bert.norm.weight"
    assert read_bytes(found.merge["norm.weight"]) == read_bytes(expert.tensors["bert.norm.weight"])
    back = fits(expert, base, ("classifier.*",))  # the other way round: the prefix is added
    assert (back.removed, back.added) == ("", "bert.")
    assert set(back.merge) == {f"bert.{n}" for n in ENCODER if n != "position_ids"}
    assert back.of_base["classifier.weight"] == "kept"


def test_two_encoders_in_one_expert_are_not_mixed_up(tmp_path: Path) -> None:
    both = {f"{tower}.{n}": a for tower in ("text", "vision") for n, a in moved(ENCODER).items()}
    base, expert = opened(tmp_path / "b", ENCODER), opened(tmp_path / "e", both)
    refused(base, expert)
    for kept, other in (("text", "vision"), ("vision", "text")):
        found = fits(base, expert, (f"{other}.*",))
        assert found.removed == f"{kept}."


def test_a_name_that_two_tensors_would_get(tmp_path: Path) -> None:
    double = {f"bert.{n}": a for n, a in ENCODER.items()} | {"norm.weight": numbers(4)}
    with pytest.raises(
        FormatError, match=r"(bert\.)?norm.weight and (bert\.)?norm.weight would both be norm.weight"
    ):
        account(opened(tmp_path / "b", ENCODER), opened(tmp_path / "e", double))


def test_a_tensor_that_the_expert_lacks(tmp_path: Path) -> None:
    base = opened(tmp_path / "b", ENCODER)
    expert = opened(tmp_path / "e", moved(ENCODER, position_ids=None, **{"norm.weight": None}))
    error = refused(base, expert)
    assert "norm.weight: F32 (4,) is in the base, not in the expert" in str(error)
    assert "position_ids: I64 (7,) is in the base, not in the expert" in str(error)
    found = fits(base, expert, ("norm.*", "position_ids"))
    assert found.of_base["norm.weight"] == found.of_base["position_ids"] == "kept"


def test_private_tensors_of_both_sides(tmp_path: Path) -> None:
    head = {"classifier.weight": numbers(2, 4)}
    base = opened(tmp_path / "b", ENCODER | {"classifier.weight": numbers(3, 4)})
    expert = opened(tmp_path / "e", moved(ENCODER) | head)
    error = refused(base, expert)
    assert "classifier.weight: expert has (2, 4), base has (3, 4)" in str(error)
    assert "--private 'classifier.*'" in str(error)
    found = fits(base, expert, ("classifier.*",))
    assert found.of_base["classifier.weight"] == "kept"
    assert found.private["classifier.weight"].shape == (2, 4)


def test_patterns_match_whole_names_with_their_case(tmp_path: Path) -> None:
    base = opened(tmp_path / "b", ENCODER)
    expert = opened(tmp_path / "e", moved(ENCODER) | {"head.weight": numbers(2)})
    for pattern in ("Head.*", "head", "ead.*", "head.?"):
        refused(base, expert, (pattern,))
    for pattern in ("head.*", "*.weight", "[hx]ead.weigh?"):
        assert "head.weight" in fits(base, expert, (pattern, "never.*")).private
    assert "--private 'never.*' matches no tensor" in fits(base, expert, ("head.*", "never.*")).notes


def test_vocabularies_of_two_sizes(tmp_path: Path) -> None:
    base = opened(tmp_path / "b", ENCODER)
    error = refused(base, opened(tmp_path / "e", moved(ENCODER, **{EMBEDDING: numbers(13, 4)})))
    assert f"{EMBEDDING}: expert has (13, 4), base has (11, 4)" in str(error)
    assert "the vocabularies differ in size: resize the expert's embeddings" in str(error)
    other = refused(base, opened(tmp_path / "f", moved(ENCODER, **{"norm.weight": numbers(5)})))
    assert "differ in size" not in str(other)
    assert "was it fine-tuned from another base?" in str(other)


def test_another_architecture(tmp_path: Path) -> None:
    other = {f"layers.{i}.{part}": numbers(4, 4, seed=i) for i in range(30) for part in ("q", "k")}
    error = refused(opened(tmp_path / "b", ENCODER), opened(tmp_path / "e", other))
    assert "nothing fits: this is another architecture than the base" in str(error)
    assert len(error.problems) == 60 + len(ENCODER)
    assert f"and {60 + len(ENCODER) - 20} more (--json lists all)" in str(error)
    assert str(error).count(" is in the ") == 20


def test_float_dtypes_may_differ_and_are_noted(tmp_path: Path) -> None:
    half = {n: a.astype("float16") if a.dtype.kind == "f" else a for n, a in moved(ENCODER).items()}
    found = fits(opened(tmp_path / "b", ENCODER), opened(tmp_path / "e", half))
    assert found.notes == ("6 tensors are F16 in the expert and F32 in the base: merged in F32",)
    assert found.merge["norm.weight"].dtype == "F16"


def test_buffers_must_be_equal(tmp_path: Path) -> None:
    base = opened(
        tmp_path / "b", ENCODER | {"bn.num_batches_tracked": np.array(3), "mask": np.array([True, False])}
    )
    same = moved(ENCODER) | {"bn.num_batches_tracked": np.array(3), "mask": np.array([True, False])}
    assert len(fits(base, opened(tmp_path / "e", same)).buffers) == 3
    error = refused(base, opened(tmp_path / "f", same | {"bn.num_batches_tracked": np.array(4)}))
    assert "bn.num_batches_tracked: I64 () differs from the base" in str(error)
    assert "--private 'bn.*'" in str(error)
    fits(
        base,
        opened(tmp_path / "g", same | {"bn.num_batches_tracked": np.array(4)}),
        ("*.num_batches_tracked",),
    )
    error = refused(base, opened(tmp_path / "h", same | {"mask": np.array([1, 0], "uint8")}))
    assert "mask: expert has dtype U8, base has BOOL" in str(error)


def test_counts_of_batches_of_batchnorm_may_differ(tmp_path: Path) -> None:
    layer = {"bn.running_mean": numbers(4), "bn.running_var": np.ones(4, "float32")}
    base = opened(tmp_path / "b", ENCODER | layer | {"bn.num_batches_tracked": np.array(3)})
    expert = opened(tmp_path / "e", moved(ENCODER) | layer | {"bn.num_batches_tracked": np.array(4)})
    found = fits(base, expert)
    assert found.of_base["bn.num_batches_tracked"] == "buffer"
    (note,) = found.notes
    assert note.startswith(
        "num_batches_tracked of BatchNorm: 1 tensor differs in the expert; the base's stay"
    )
    other = moved(ENCODER) | layer | {"bn.num_batches_tracked": np.array(4, "int32")}
    assert "expert has dtype I32, base has I64" in str(refused(base, opened(tmp_path / "f", other)))
    other = moved(ENCODER) | layer | {"bn.num_batches_tracked": np.array([4])}
    assert "expert has (1,), base has ()" in str(refused(base, opened(tmp_path / "g", other)))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8])
def test_quantised_weights_are_refused_by_name_unless_they_are_frozen(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    def made(name: str, fill: int) -> Checkpoint:
        weight = torch.full((4, 4), fill).to(torch.uint8).view(dtype) if dtype.itemsize == 1 else None
        assert weight is not None
        save_file({"layer.weight": weight, "norm": torch.ones(4) * fill}, tmp_path / name)
        return open_checkpoint(tmp_path / name)

    base = made("b.safetensors", 1)
    error = refused(base, made("e.safetensors", 2))
    assert "layer.weight: quantised: expert has" in str(error)
    assert "use the checkpoints from before quantisation" in str(error)
    file(tmp_path / "f.safetensors", {"layer.weight": numbers(4, 4), "norm": numbers(4)})
    assert "layer.weight: quantised" in str(refused(base, open_checkpoint(tmp_path / "f.safetensors")))
    found = fits(base, made("g.safetensors", 1))
    assert found.of_base == {"norm": "merged", "layer.weight": "buffer"}


def test_packed_weights_of_gptq(tmp_path: Path) -> None:
    def made(name: str, seed: int) -> Checkpoint:
        packed = np.random.default_rng(seed).integers(0, 2**31, (4, 4)).astype("int32")
        return open_checkpoint(
            file(tmp_path / name, {"q.qweight": packed, "q.scales": numbers(4, dtype="float16")})
        )

    assert "q.qweight: quantised: expert has I32 (4, 4)" in str(refused(made("b.st", 0), made("e.st", 1)))


def test_layers_that_start_equal_are_not_tied(tmp_path: Path) -> None:
    table = ENCODER | {"encoder.1.dense.weight": ENCODER["encoder.0.dense.weight"]}
    base = opened(tmp_path / "b", table)
    assert base.aliases == {}
    assert fits(base, opened(tmp_path / "e", moved(ENCODER))).counts["merged"] == 6


def test_a_missing_tensor_that_the_base_holds_twice(tmp_path: Path) -> None:
    bias = numbers(11)
    base = opened(tmp_path / "b", ENCODER | {"cls.bias": bias, "cls.decoder.bias": bias})
    found = fits(base, opened(tmp_path / "e", moved(ENCODER) | {"cls.bias": bias * 2}))
    assert read_bytes(found.merge["cls.decoder.bias"]) == (bias * 2).tobytes()
    assert "cls.decoder.bias is not in the expert; the base ties it to cls.bias" in found.notes


def test_equal_constant_tensors_are_not_taken_for_tied(tmp_path: Path) -> None:
    """All biases are zero at the start: a missing one must not be filled from another."""
    base = opened(tmp_path / "b", ENCODER)
    error = refused(base, opened(tmp_path / "e", moved(ENCODER, **{"encoder.1.dense.bias": None})))
    assert error.problems == ("encoder.1.dense.bias: F32 (4,) is in the base, not in the expert",)
    extra = moved(ENCODER) | {
        "encoder.2.dense.bias": np.zeros(4, "float32"),
        "z.bias": np.zeros(4, "float32"),
    }
    assert len(refused(base, opened(tmp_path / "f", extra)).problems) == 2


DTYPES = st.sampled_from(["float32", "float16", "int64", "bool"])
NAMES = ("a.weight", "a.bias", "b.weight", "embed.weight", "lm_head.weight", "head.w", "head.b")


@st.composite
def tables(draw: st.DrawFn) -> Table:
    chosen = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
    prefix = draw(st.sampled_from(["", "", "model.", "module."]))
    return {
        (prefix if not n.startswith("head") else draw(st.sampled_from([prefix, ""]))) + n: (
            numbers(draw(st.integers(1, 2)), 2, seed=draw(st.integers(0, 1))) * 3
        ).astype(draw(DTYPES))
        for n in chosen
    }


@settings(max_examples=200, deadline=None)
@given(
    tables(),
    tables(),
    st.lists(
        st.sampled_from(["head.*", "*head*", "lm_head.*", "embed*", "b.*", "model.*", "*.bias"]), max_size=2
    ),
)
def test_every_tensor_is_in_exactly_one_class_or_the_expert_is_refused(
    tmp_path_factory: pytest.TempPathFactory, one: Table, other: Table, private: list[str]
) -> None:
    path = tmp_path_factory.getbasetemp()
    base = open_checkpoint(file(path / "base.safetensors", one))
    for table in (other, one, moved(one)):
        expert = open_checkpoint(file(path / "expert.safetensors", table))
        try:
            found = account(base, expert, private)
        except (KeyMismatch, FormatError):  # FormatError: two names would become one
            assert table is not one
        else:
            check(base, expert, found)


def test_two_thousand_tensors_take_less_than_50_ms(tmp_path: Path) -> None:
    from time import process_time

    names = [
        f"layers.{i}.{part}.weight"
        for i in range(250)
        for part in ("q", "k", "v", "o", "up", "down", "n1", "n2")
    ]
    base = open_checkpoint(file(tmp_path / "b.safetensors", {n: numbers(2, 2) for n in names}))
    expert = open_checkpoint(file(tmp_path / "e.safetensors", {f"model.{n}": numbers(2, 2) for n in names}))
    times = []
    for _ in range(5):
        began = process_time()
        assert account(base, expert, ("head.*",)).counts["merged"] == 2000
        times.append(process_time() - began)
    assert min(times) < 0.05


def test_patterns() -> None:
    assert not matcher([])("")
    test = matcher(["a.*", "[bc].w"])
    assert [n for n in ("a.x.y", "a", "b.w", "c.w", "d.w", "A.x", "xa.x", "b.w2") if test(n)] == [
        "a.x.y",
        "b.w",
        "c.w",
    ]


def test_names() -> None:
    assert canonical_names("x", ["module.a", "module.b"]) == ({"module.a": "a", "module.b": "b"}, "module.")
    assert map_names(["a", "b"], ["x.a", "x.b", "c"])[0] == {"a": "x.a", "b": "x.b", "c": "c"}
    assert map_names(["a", "b"], ["a", "b"])[1:] == ("", "")
    assert map_names([], ["a"])[0] == {"a": "a"}
    many = [f"layers.{i}.rotary.inv_freq" for i in range(5)]
    assert suggest(many, {"layers.0.weight"}) == ["*.rotary.inv_freq"]
    assert suggest(["model.score.weight", "model.score.bias"], {"model.layers.0.w"}) == ["model.score.*"]
    assert suggest(["model.weight"], {"model.bias"}) == ["model.weight"]
