"""Four classification tasks made of real data that ships inside ordinary Python packages.

| task     | texts                             | classes                | source                          |
|----------|-----------------------------------|------------------------|---------------------------------|
| polarity | English words                     | positive, negative     | vaderSentiment's rated lexicon  |
| language | names of countries                | ten languages          | Babel (Unicode CLDR)            |
| colour   | names that people gave to colours | ten families of hue    | XKCD colour survey (matplotlib) |
| entity   | English names                     | currency, country, ... | Babel (Unicode CLDR)            |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from colorsys import rgb_to_hsv
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module

Example = tuple[str, int]
"""A text and the index of its class."""


@dataclass(frozen=True)
class Task:
    """A text classification task. No text is in two of the three splits."""

    name: str
    source: str
    classes: tuple[str, ...]  # each class in a few English words: the zero-shot head is made of them
    train: tuple[Example, ...]
    validation: tuple[Example, ...]
    test: tuple[Example, ...]


@dataclass(frozen=True)
class Sizes:
    """The most examples that a split takes. Test examples are set aside first."""

    train: int = 800
    validation: int = 100
    test: int = 250


LANGUAGES = {
    "de": "German", "fr": "French", "es": "Spanish", "it": "Italian", "fi": "Finnish",
    "hu": "Hungarian", "pl": "Polish", "tr": "Turkish", "cy": "Welsh", "sw": "Swahili",
}  # fmt: skip
EDGES = ((40, "orange"), (68, "yellow"), (155, "green"), (192, "turquoise"), (258, "blue"), (345, "purple"))
HUES = ("red", "orange", "yellow", "green", "turquoise", "blue", "purple", "pink", "brown", "grey")


def load_tasks(seed: int, sizes: Sizes | None = None) -> list[Task]:
    """The four tasks, in the order of the stream. The same seed gives the same splits on any machine."""
    sizes = sizes or Sizes()
    return [make(seed, sizes) for make in (_polarity, _language, _colour, _entity)]


def _task(
    name: str, source: str, classes: Iterable[str], pairs: Iterable[Example], seed: int, sizes: Sizes
) -> Task:
    """Drop texts that carry two labels, shuffle by a hash of seed and text, and cut into splits."""
    labels: dict[str, set[int]] = {}
    for text, label in pairs:
        labels.setdefault(text.casefold().strip(), set()).add(label)
    clear = [(text, found.pop()) for text, found in labels.items() if len(found) == 1]
    clear.sort(key=lambda example: sha256(f"{seed}/{name}/{example[0]}".encode()).digest())
    test, rest = clear[: sizes.test], clear[sizes.test :]
    validation, train = rest[: sizes.validation], rest[sizes.validation :][: sizes.train]
    return Task(name, source, tuple(classes), tuple(train), tuple(validation), tuple(test))


def _polarity(seed: int, sizes: Sizes) -> Task:
    from importlib.resources import files

    lexicon = files("vaderSentiment").joinpath("vader_lexicon.txt").read_text(encoding="utf-8")
    rated = [(line.split("\t")[0], float(line.split("\t")[1])) for line in lexicon.splitlines() if line]
    pairs = [(word, int(value < 0)) for word, value in rated if word.isalpha() and abs(value) >= 1]
    few = min(Counter(label for _, label in pairs).values())
    pairs.sort(key=lambda example: sha256(example[0].encode()).digest())
    pairs = [p for label in (0, 1) for p in [q for q in pairs if q[1] == label][:few]]
    classes = ("positive", "negative")
    return _task("polarity", "words of the vaderSentiment lexicon", classes, pairs, seed, sizes)


def _language(seed: int, sizes: Sizes) -> Task:
    from babel import Locale

    english = {name.casefold() for name in Locale("en").territories.values()}
    pairs = [
        (name, label)
        for label, code in enumerate(LANGUAGES)
        for key, name in Locale(code).territories.items()
        if key.isalpha() and name.casefold() not in english
    ]
    classes = [f"a word in {name}" for name in LANGUAGES.values()]
    return _task("language", "country names in ten languages, from Babel", classes, pairs, seed, sizes)


def hue_family(red: float, green: float, blue: float) -> int:
    """Index into HUES of a colour with components 0..1: its hue, but grey where it has little of it, brown
    where an orange is dark, pink where a red is light."""
    hue, saturation, value = rgb_to_hsv(red, green, blue)
    degrees = hue * 360
    if saturation < 0.2 or value < 0.12:
        return HUES.index("grey")
    if (degrees < 15 or degrees >= 290) and value > 0.6 and saturation < (0.75 if degrees >= 290 else 0.6):
        return HUES.index("pink")
    if degrees >= 345 or degrees < 12:
        return HUES.index("red") if value > 0.25 else HUES.index("brown")
    if degrees < 50 and value < 0.75:
        return HUES.index("brown")
    edges = (
        (40, "orange"),
        (68, "yellow"),
        (155, "green"),
        (192, "turquoise"),
        (258, "blue"),
        (345, "purple"),
    )
    return HUES.index(next(name for edge, name in edges if degrees < edge))


def _rgb(code: str) -> tuple[float, float, float]:
    red, green, blue = (int(code[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue


def _colour(seed: int, sizes: Sizes) -> Task:
    names: dict[str, str] = import_module(
        "matplotlib.colors"
    ).XKCD_COLORS  # name -> "#rrggbb"; nothing is drawn
    pairs = [(name.removeprefix("xkcd:"), hue_family(*_rgb(code))) for name, code in names.items()]
    return _task(
        "colour", "names of the XKCD colour survey", [f"{h} colour" for h in HUES], pairs, seed, sizes
    )


def _entity(seed: int, sizes: Sizes) -> Task:
    from babel import Locale

    english = Locale("en")
    kinds = {
        "a currency, money": english.currencies,
        "a language that people speak": english.languages,
        "a country or region": english.territories,
        "a writing system, an alphabet": english.scripts,
    }
    pairs = [(name, label) for label, names in enumerate(kinds.values()) for name in names.values()]
    return _task("entity", "currencies, languages, countries, scripts, from Babel", kinds, pairs, seed, sizes)
