"""Reading a page back with the standard library, strictly: every element is closed in its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "col"}


@dataclass
class Parsed:
    """Elements in order as (name, attributes), texts, and what is wrong with the page."""

    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    style: str = ""
    problems: list[str] = field(default_factory=list)

    @property
    def shape(self) -> list[tuple[str, tuple[str, ...]]]:
        """The page without what names can change: elements with the names of their attributes."""
        return [(name, tuple(attributes)) for name, attributes in self.elements]

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.elements if found == name]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found = Parsed()
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.found.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["style"]:
            self.found.style += data
        else:
            self.found.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.found.problems.append(f"a comment: {data}")

    def handle_pi(self, data: str) -> None:
        self.found.problems.append(f"an instruction: {data}")

    def unknown_decl(self, data: str) -> None:
        self.found.problems.append(f"a declaration: {data}")

    def close(self) -> None:
        super().close()
        self.found.problems += [f"<{tag}> is never closed" for tag in self._open]

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            self.found.problems.append(f"<{tag}> has an attribute twice: {names}")
        self.found.elements.append((tag, dict(attrs)))


def parse(page: str) -> Parsed:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader.found


Label = tuple[tuple[float, float], dict[str, str | None], str]


class _Labels(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[Label] = []
        self._frame = (0.0, 0.0)
        self._text: dict[str, str | None] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = dict(attrs)
        if tag == "svg":
            self._frame = (float(own["width"] or 0), float(own["height"] or 0))
        self._text = own if tag == "text" else None

    def handle_data(self, data: str) -> None:
        if self._text is not None:
            self.found.append((self._frame, self._text, data))

    def handle_endtag(self, tag: str) -> None:
        self._text = None


def svg_texts(page: str) -> list[Label]:
    """Every text in a figure: (width and height of the figure, attributes, words)."""
    reader = _Labels()
    reader.feed(page)
    reader.close()
    return reader.found
