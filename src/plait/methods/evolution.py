"""Random search with covariance matrix adaptation: the one file that knows the package `cma`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from warnings import catch_warnings, simplefilter

from plait.errors import UsageError


def minimise(
    objective: Callable[[list[float]], float], start: Sequence[float], sigma: float, budget: int, seed: int
) -> None:
    """Call `objective` at most `budget` times at points that CMA-ES proposes (Hansen 2016, arXiv 1604.00772); the
    caller notes the best. Stops early where the package says that nothing is left to find.

    The points depend on arguments and losses alone: random numbers come from a generator of their own.
    UsageError where the package is missing.
    """
    try:
        with catch_warnings():
            simplefilter("ignore")  # it tells of packages for plots, which are not made
            import cma
    except ImportError:
        raise UsageError(
            "fit=cmaes needs the package cma; install it with pip install 'plait[fit]'"
        ) from None
    import numpy

    random = numpy.random.Generator(numpy.random.Philox(seed))
    count = len(start)

    def normal(*shape: int) -> Any:
        return random.standard_normal(shape)

    # The package wants two coordinates at least: one that changes nothing stands beside a single one.
    first = list(start) if count > 1 else [*start, 0.0]
    options = {"randn": normal, "seed": numpy.nan, "verbose": -9, "verb_log": 0, "verb_disp": 0}
    search = cma.CMAEvolutionStrategy(first, sigma, options)
    while budget > 0 and not search.stop():
        points = search.ask()
        if len(points) > budget:
            for point in points[:budget]:
                objective([float(value) for value in point[:count]])
            return
        search.tell(points, [objective([float(value) for value in point[:count]]) for point in points])
        budget -= len(points)
