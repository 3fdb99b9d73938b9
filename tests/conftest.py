"""One run of the tests is like another: Hypothesis draws the same examples, torch uses one thread a worker."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True, print_blob=True)
settings.register_profile("search", derandomize=False)  # HYPOTHESIS_PROFILE=search looks for new examples
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

os.environ.setdefault("OMP_NUM_THREADS", "1")
