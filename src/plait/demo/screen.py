"""What the demo prints, and the record of it: sections, aligned tables, and claims that hold or fail."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WIDTH = 100


@dataclass
class Screen:
    """Prints a run and keeps its results. `results` goes to `results.json` as it is."""

    results: dict[str, Any] = field(default_factory=lambda: {"claims": [], "seconds": {}})
    started: float = field(default_factory=time.monotonic)
    _sections: int = 0

    def say(self, text: str = "") -> None:
        """A paragraph."""
        print(textwrap.fill(text, WIDTH), flush=True)

    def section(self, heading: str, lead: str = "") -> None:
        """Begin the next numbered section; `lead` says in a sentence or two what it is about."""
        self._sections += 1
        print(f"\n{self._sections}. {heading}", flush=True)
        if lead:
            self.say(lead)

    def table(
        self,
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        marks: Sequence[int] = (),
        left: Sequence[int] = (0,),
    ) -> None:
        """An aligned table. A rule is drawn above each row in `marks`; columns in `left` are set to the left."""
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
        rule = "  " + "-" * (sum(widths) + 2 * (len(widths) - 1))

        def line(row: Sequence[str]) -> str:
            cells = [
                c.ljust(w) if i in left else c.rjust(w)
                for i, (c, w) in enumerate(zip(row, widths, strict=True))
            ]
            return ("  " + "  ".join(cells)).rstrip()

        print(f"\n{line(header)}\n{rule}")
        for number, row in enumerate(rows):
            if number in marks:
                print(rule)
            print(line(row))
        print(flush=True)

    def claim(self, name: str, holds: bool, text: str) -> None:
        """State a fact that was just computed. One that does not hold makes the run fail."""
        self.results["claims"].append({"name": name, "holds": bool(holds), "text": text})
        mark = "[holds] " if holds else "[FAILS] "
        print(textwrap.fill(mark + text, WIDTH, subsequent_indent=" " * len(mark)), flush=True)

    def timed(self, name: str) -> Timer:
        """`with screen.timed("merge"):` adds the seconds to `results["seconds"]["merge"]`."""
        return Timer(name, self.results["seconds"])

    def failed(self) -> list[str]:
        """Names of the claims that did not hold."""
        return [claim["name"] for claim in self.results["claims"] if not claim["holds"]]

    def finish(self, file: Path) -> None:
        """Write the results, print the last line."""
        self.results["seconds"]["total"] = round(time.monotonic() - self.started, 1)
        self.results["failed"] = self.failed()
        file.write_text(json.dumps(self.results, indent=1) + "\n", encoding="utf-8")
        held = len(self.results["claims"]) - len(self.failed())
        print(f"\nEverything above was computed in this run; its numbers are in {file}.")
        print(
            f"{held} of {len(self.results['claims'])} claims hold. "
            f"Total: {self.results['seconds']['total']:.0f} seconds.",
            flush=True,
        )


@dataclass
class Timer:
    """Adds the time spent inside a `with` block to an entry of a mapping."""

    name: str
    into: dict[str, float]
    began: float = 0.0
    seconds: float = 0.0

    def __enter__(self) -> Timer:
        self.began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self.began
        self.into[self.name] = round(self.into.get(self.name, 0.0) + self.seconds, 2)


def percent(share: float) -> str:
    return f"{100 * share:.1f}"
