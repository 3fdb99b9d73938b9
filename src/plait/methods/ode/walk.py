"""Making the steps of a path, while somebody looks on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy

from plait.methods.base import Known
from plait.methods.ode.calibration import means
from plait.methods.ode.flat import Layout
from plait.methods.watch import NEAR, Watch
from plait.tensors import Tensor

Step = Callable[[Tensor, float, float, Known], None]
"""(theta, t, after, trace): move theta from t to `after`, in place, and note in the trace what was found."""


def walk(
    watch: Watch, layout: Layout, theta: Tensor, marks: Sequence[float], trace: Known, step: Step
) -> None:
    """Move `theta` along the marks, from the one that the trace has come to (`norm` has a number for each step).

    A point that is wanted between two marks is where a shorter step leads: to the bytes of a path that ends there. It
    costs that step more, and a buffer; the path itself does not change.
    """
    for number in range(len(trace["norm"]), len(marks) - 1):
        t, after = marks[number], marks[number + 1]
        wanted = watch.wanted(t, after)
        if number == 0 and watch.wanted(-1.0, 0.0):
            watch.point(0.0, layout.views(theta))
        for at in [place for place in wanted if place < after - NEAR]:
            aside = theta.clone()
            step(aside, t, at, deepcopy(trace))
            watch.point(at, layout.views(aside))
            del aside
        step(theta, t, after, trace)
        watch.tell(number + 1, len(marks) - 1, means(trace["losses"])[-1])
        if wanted and wanted[-1] >= after - NEAR:
            watch.point(after, layout.views(theta))
        if watch.due():
            watch.keep(trace, layout.views(theta))
