"""Models on the way of a merge: points of the path that a method follows, each a checkpoint like the base."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.checkpoint.format import fsync_folder
from plait.checkpoint.keys import untied
from plait.checkpoint.layout import Checkpoint
from plait.checkpoint.output import Output, plan_output
from plait.errors import RefusedInput, UsageError
from plait.methods.base import Method
from plait.methods.watch import NEAR, between
from plait.types import TensorRef

if TYPE_CHECKING:
    from plait.line.build import Setting

INDEX = "points.json"
KEY = "plait.t"
"""Where the metadata of a point's weights say how far along the path it lies."""


@dataclass(frozen=True)
class Asked:
    """The points that one merge is to write.

    folder: where; it must not exist, or be of an interrupted run of the same merge. places: their t; None for the end
    of every step. identity: words that tell this merge from others.
    """

    folder: Path
    places: tuple[float, ...] | None
    identity: tuple[Any, ...]

    def plain(self) -> list[Any]:
        return [str(self.folder), self.places, list(self.identity)]

    def told(self) -> list[dict[str, Any]]:
        """The points that were written: list of {t, path}, by t."""
        return [{"t": row["t"], "path": str(self.folder / row["name"])} for row in read(self)]

    def lacking(self) -> tuple[str, ...]:
        """A note on points that were asked for and lie where the path does not come; none where all are there."""
        there = [row["t"] for row in read(self)]
        beyond = [t for t in self.places or () if not any(abs(t - other) <= NEAR for other in there)]
        if not beyond:
            return ()
        far = ", ".join(f"{t:g}" for t in beyond)
        return (f"no point was written for t = {far}: the path ends before, or there was none to follow",)

    @classmethod
    def of(
        cls, method: Method, folder: str | Path, places: Sequence[float] | None, identity: Sequence[Any]
    ) -> Asked:
        """UsageError for a method without a path, or a t outside of 0 to 1; RefusedInput where the folder holds
        anything else."""
        if not getattr(method, "follows_path", False):
            raise UsageError(
                f"points of a path were asked for, and {method.name} with these options follows none; ode_m does, as "
                "variant paper or released"
            )
        if places is not None and (isinstance(places, str) or not isinstance(places, Sequence)):
            raise UsageError(f"path_at is {places!r}, expected numbers from 0 to 1, such as [0, 0.25]")
        for t in places or ():
            if isinstance(t, bool) or not isinstance(t, (int, float)) or not (isfinite(t) and 0 <= t <= 1):
                raise UsageError(f"t is {t!r}, expected a number from 0 to 1")
        asked = cls(
            Path(folder).resolve(), None if places is None else tuple(sorted(set(places))), tuple(identity)
        )
        read(asked)
        return asked


def read(asked: Asked) -> list[dict[str, Any]]:
    """The points that lie in the folder by now: list of {t, name}, by t."""
    if not os.path.lexists(asked.folder):
        return []
    try:
        noted = json.loads((asked.folder / INDEX).read_text(encoding="utf-8"))
        if noted["of"] == json.loads(json.dumps(asked.identity)):
            return sorted(noted["points"], key=lambda row: float(row["t"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise RefusedInput(f"{asked.folder} exists, and holds no points of this merge; give another place")


@dataclass
class Points:
    """Writes them, one after the other (see `engine.watching.Points`). A point is there whole, or not at all."""

    setting: Setting
    asked: Asked
    _now: tuple[Output, Path] | None = field(default=None, init=False)

    def wanted(self, t: float, after: float) -> Sequence[float]:
        if self.asked.places is not None:
            return between(self.asked.places, t, after)
        return [] if t < 0 else [after]

    def begin(self, t: float) -> Mapping[str, TensorRef]:
        from plait.line.build import mergeable, version_place

        self.asked.folder.mkdir(parents=True, exist_ok=True)
        fresh = self.asked.folder / "point.new"
        shutil.rmtree(fresh, ignore_errors=True)
        setting = self.setting
        base = _noted(setting.base, t)
        output = plan_output(base, version_place(base, fresh), untie=untied(base, setting.private))
        self._now = output, fresh
        return {name: output.places[name] for name in mergeable(base, setting.private)}

    def finish(self, t: float) -> None:
        from plait import engine
        from plait.line.build import engine_settings, mergeable

        if self._now is None:
            raise ValueError("no point was begun")
        (output, fresh), self._now = self._now, None
        setting = self.setting
        merged = mergeable(setting.base, setting.private)
        rest = [(setting.base.tensors[n], place) for n, place in output.places.items() if n not in merged]
        engine.copy(rest, engine_settings(setting.workers, setting.chunk, True))
        output.finish()
        name = f"t-{t:.10g}"
        shutil.rmtree(self.asked.folder / name, ignore_errors=True)  # of an interrupted run of the same merge
        os.replace(fresh, self.asked.folder / name)
        self._note({"t": t, "name": name})

    def _note(self, row: Mapping[str, Any]) -> None:
        known = read(self.asked) if (self.asked.folder / INDEX).exists() else []
        rows = [*(one for one in known if one["name"] != row["name"]), row]
        text = json.dumps({"of": self.asked.identity, "points": rows}, ensure_ascii=False) + "\n"
        fresh = self.asked.folder / f"{INDEX}.new"
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, self.asked.folder / INDEX)
        fsync_folder(self.asked.folder)


def _noted(base: Checkpoint, t: float) -> Checkpoint:
    """The base with t in the metadata of its weights."""
    shards = [replace(shard, metadata={**shard.metadata, KEY: repr(t)}) for shard in base.shards]
    return replace(base, shards=tuple(shards))
