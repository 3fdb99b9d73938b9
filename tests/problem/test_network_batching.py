"""Batches of like length."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from plait.problem.batching import batches_by_length, mean_of_tokens, pad


def test_short_texts_come_first_and_equal_ones_in_order() -> None:
    assert list(batches_by_length([5, 2, 9, 2, 7], 2)) == [[1, 3], [0, 4], [2]]


@given(st.lists(st.integers(0, 9)), st.integers(1, 5))
def test_every_index_is_in_one_batch(lengths: list[int], batch: int) -> None:
    found = list(batches_by_length(lengths, batch))
    assert sorted(i for rows in found for i in rows) == list(range(len(lengths)))
    assert all(0 < len(rows) <= batch for rows in found)
    flat = [lengths[i] for rows in found for i in rows]
    assert flat == sorted(lengths)


def test_a_batch_ends_before_it_is_mostly_filling() -> None:
    """8 texts of 4 tokens and one of 40: with it, 288 of 360 tokens were filling. A few texts are not cut."""
    assert list(batches_by_length([4] * 8 + [40], 64, 1 / 8)) == [list(range(8)), [8]]
    assert list(batches_by_length([4] * 8 + [40], 64)) == [list(range(9))]
    assert list(batches_by_length([4] * 7 + [40], 64, 1 / 8)) == [list(range(8))]
    assert list(batches_by_length([8] * 8 + [9], 64, 1 / 8)) == [list(range(9))]
    assert list(batches_by_length([0] * 20, 64, 1 / 8)) == [list(range(20))]


def test_padding_is_on_the_right_and_masked() -> None:
    batch = pad([[5, 6], [7], [8, 9, 3]], 1)
    assert batch["input_ids"].tolist() == [[5, 6, 1], [7, 1, 1], [8, 9, 3]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1]]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_there_is_no_mask_where_nothing_is_padded() -> None:
    assert set(pad([[5, 6], [1, 1]], 1)) == {"input_ids"}


def test_the_mean_leaves_filling_out() -> None:
    hidden = torch.tensor([[[1.0], [3.0], [100.0]], [[1.0], [3.0], [5.0]]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    assert mean_of_tokens(hidden, mask).tolist() == [[2.0], [3.0]]
    assert mean_of_tokens(hidden[1:], None).tolist() == [[3.0]]
