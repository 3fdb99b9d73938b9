"""Exact real arithmetic on chunks: what a task vector is, how task vectors are summed, and how the merged chunk is
rounded once. This file names what other layers may use."""

from __future__ import annotations

from plait.tensors.real import Exact, difference
from plait.tensors.rounding import Scan, round_once, scan
from plait.tensors.settle import settle
from plait.tensors.sums import ExactSum, dense_bins

__all__ = ["Exact", "ExactSum", "Scan", "dense_bins", "difference", "round_once", "scan", "settle"]
