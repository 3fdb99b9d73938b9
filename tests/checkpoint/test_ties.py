"""Tied weights: merged once, unless a pattern takes one of the two names out."""

from __future__ import annotations

from pathlib import Path

from plait.checkpoint.format import read_bytes
from plait.checkpoint.keys import untied
from tests.checkpoint.files import numbers
from tests.checkpoint.test_keys import EMBEDDING, ENCODER, fits, moved, opened, refused

TIED = "cls.predictions.decoder.weight"


def test_tied_weights_stored_twice_are_merged_once(tmp_path: Path) -> None:
    table = ENCODER | {TIED: ENCODER[EMBEDDING]}
    base = opened(tmp_path / "b", table)
    assert base.aliases == {TIED: EMBEDDING}
    assert TIED not in base.kept
    new = moved(ENCODER)
    expert = opened(tmp_path / "both", new | {TIED: new[EMBEDDING]})
    found = fits(base, expert)
    assert found.tied == {TIED: EMBEDDING}
    assert read_bytes(found.duplicates[TIED]) == new[EMBEDDING].tobytes()
    assert found.stored.keys() == found.names.keys() == expert.tensors.keys()
    found = fits(base, opened(tmp_path / "dropped", new))
    assert found.of_base[TIED] == "tied"
    assert found.duplicates == {}
    assert TIED not in found.stored
    renamed = opened(
        tmp_path / "other", {n: a for n, a in new.items() if n != EMBEDDING} | {TIED: new[EMBEDDING]}
    )
    found = fits(base, renamed)
    assert read_bytes(found.merge[EMBEDDING]) == new[EMBEDDING].tobytes()
    error = refused(base, opened(tmp_path / "untied", new | {TIED: numbers(11, 4, seed=5)}))
    assert f"{TIED}: untied: differs from {EMBEDDING} in the expert" in str(error)


def test_a_private_alias_is_a_tensor_of_its_own(tmp_path: Path) -> None:
    base = opened(tmp_path / "b", ENCODER | {TIED: ENCODER[EMBEDDING]})
    new = moved(ENCODER)
    own = numbers(11, 4, seed=5)
    for name, head in (("tied", new[EMBEDDING]), ("untied", own)):
        found = fits(base, opened(tmp_path / name, new | {TIED: head}), ("cls.*",))
        assert found.of_base[TIED] == "kept"
        assert found.of_base[EMBEDDING] == "merged"
        assert (found.tied, found.duplicates) == ({}, {})
        assert found.private.keys() == {TIED}
        assert read_bytes(found.private[TIED]) == head.tobytes()
    found = fits(base, opened(tmp_path / "dropped", new), ("cls.*",))
    assert (found.of_base[TIED], found.tied, found.private) == ("kept", {}, {})
    only = {n: a for n, a in new.items() if n != EMBEDDING} | {TIED: own}
    error = refused(base, opened(tmp_path / "only", only), ("cls.*",))
    assert f"{EMBEDDING}: F32 (11, 4) is in the base, not in the expert" in str(error)
    assert untied(base, ["cls.*"]) == {TIED}
    assert untied(base, ["CLS.*", "cls", "embeddings.*"]) == untied(base, []) == frozenset()


def test_the_tensor_that_an_alias_follows_may_be_private(tmp_path: Path) -> None:
    base = opened(tmp_path / "b", ENCODER | {TIED: ENCODER[EMBEDDING]})
    new = moved(ENCODER)
    found = fits(base, opened(tmp_path / "both", new | {TIED: new[EMBEDDING]}), ("embeddings.*",))
    assert (found.of_base[EMBEDDING], found.of_base[TIED]) == ("kept", "tied")
    assert found.duplicates.keys() == {TIED}
    only = {n: a for n, a in new.items() if n != EMBEDDING} | {TIED: new[EMBEDDING]}
    found = fits(base, opened(tmp_path / "only", only), ("embeddings.*",))
    assert read_bytes(found.private[EMBEDDING]) == new[EMBEDDING].tobytes()


def test_an_alias_that_the_base_dropped(tmp_path: Path) -> None:
    base = opened(tmp_path / "b", ENCODER, {"tie_word_embeddings": True})
    new = moved(ENCODER)
    found = fits(base, opened(tmp_path / "e", new | {"lm_head.weight": new[EMBEDDING]}))
    assert found.of_expert["lm_head.weight"] == "tied"
    assert found.tied == {"lm_head.weight": EMBEDDING}
    assert found.duplicates.keys() == {"lm_head.weight"}
    assert "lm_head.weight of the expert is tied to" in found.notes[0]
    error = refused(base, opened(tmp_path / "u", new | {"lm_head.weight": numbers(11, 4, seed=5)}))
    assert "lm_head.weight: untied" in str(error)
    silent = opened(
        tmp_path / "s", ENCODER, {}
    )  # the base does not say that it ties: a head of the expert's own
    error = refused(silent, opened(tmp_path / "v", new | {"lm_head.weight": numbers(11, 4, seed=5)}))
    assert "--private 'lm_head.*'" in str(error)


def test_a_head_that_starts_equal_but_is_not_tied(tmp_path: Path) -> None:
    table = ENCODER | {"lm_head.weight": ENCODER[EMBEDDING]}
    base = opened(tmp_path / "b", table, {"tie_word_embeddings": False})
    assert base.aliases == {}
    found = fits(base, opened(tmp_path / "e", moved(ENCODER) | {"lm_head.weight": numbers(11, 4, seed=5)}))
    assert found.of_base["lm_head.weight"] == "merged"


def test_three_tied_embeddings(tmp_path: Path) -> None:
    names = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    base = opened(tmp_path / "b", dict.fromkeys(names, numbers(11, 4)), {"tie_word_embeddings": True})
    assert len(base.aliases) == 3
    assert len(set(base.aliases.values())) == 1
    expert = opened(tmp_path / "e", {"shared.weight": numbers(11, 4, seed=3)})
    kept = next(iter(base.aliases.values()))
    assert read_bytes(fits(base, expert).merge[kept]) == numbers(11, 4, seed=3).tobytes()
