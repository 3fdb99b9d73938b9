"""Images in npz files: as pixels, or as JPEG files packed one after the other. Pickles are never read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.errors import RefusedInput, shown
from plait.problem.base import Split
from plait.problem.images import Images, decode, fitted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

SPLITS: tuple[Split, ...] = ("train", "calibration", "validation", "test")
ARRAYS = (*(f"{array}_{split}" for split in SPLITS for array in ("x", "y", "jpeg", "off")), "classes")
"""Arrays of an npz file. x: uint8 pixels (n, height, width, 3), or grey: (n, height, width, 1) or (n, height, width).
jpeg: image files one after the other, as bytes; off: n + 1 places in it, file i lies between off[i] and off[i + 1].
y: n labels. classes: names of classes, in the order of their labels."""


@dataclass(frozen=True)
class Npz(Images):
    """An npz file. columns: the file's names for ARRAYS; left out they are called so. Rows count on from one split to
    the next, in the order of SPLITS."""

    path: Path
    columns: Mapping[str, str]
    size: int | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def splits(self) -> list[str]:
        return [split for split, labels in self._labels.items() for _ in labels]

    @cached_property
    def labels(self) -> list[int | str]:
        return [label for labels in self._labels.values() for label in labels]

    @cached_property
    def names(self) -> tuple[str, ...] | None:
        """The array `classes`; None where the file has none."""
        name = self.columns.get("classes", "classes")
        if name not in _names(self.path) and "classes" not in self.columns:
            return None
        found = _array(self.path, name)
        if found.ndim != 1 or found.dtype.kind != "U":
            raise RefusedInput(f"{self.path}: {name} is {_form(found)}; expected the names of the classes")
        return tuple(found.tolist())

    def where(self, row: int) -> str:
        split, index = self._place(row)
        return f"{split} image {index} of {self.path}"

    def walk(self, rows: Sequence[int]) -> Iterator[Array]:
        """Holds the pixels, or the packed files, of one split at a time."""
        held: tuple[Split, Callable[[int], Array]] | None = None
        for row in rows:
            split, index = self._place(row)
            if held is None or held[0] != split:
                held = None  # lets go of the last split first
                held = split, self._open(split)
            yield held[1](index)

    @cached_property
    def _labels(self) -> dict[Split, list[int | str]]:
        there = _names(self.path)
        found: dict[Split, list[int | str]] = {}
        for split in SPLITS:
            if not {self._name("x", split), self._name("jpeg", split)} & set(there):
                continue
            labels = _array(self.path, self._name("y", split))
            if labels.ndim != 1 or labels.dtype.kind not in "iuU":
                raise RefusedInput(
                    f"{self.path}: {self._name('y', split)} is {_form(labels)}; expected one whole number or name of "
                    "a class for every image"
                )
            found[split] = labels.tolist()
        if not found:
            raise RefusedInput(
                f"{self.path}: there is no array {self._name('x', 'train')!r} or {self._name('jpeg', 'train')!r}; it "
                f"has {', '.join(there) or 'none'}: name the right ones in columns"
            )
        return found

    def _place(self, row: int) -> tuple[Split, int]:
        for split, labels in self._labels.items():
            if row < len(labels):
                return split, row
            row -= len(labels)
        raise IndexError(row)

    def _name(self, array: str, split: Split) -> str:
        return self.columns.get(f"{array}_{split}", f"{array}_{split}")

    def _open(self, split: Split) -> Callable[[int], Array]:
        """From the place in a split to the image."""
        if self._name("x", split) in _names(self.path):
            return self._pixels(split, _array(self.path, self._name("x", split)))
        packed = _array(self.path, self._name("jpeg", split))
        return self._packed(split, packed, _array(self.path, self._name("off", split)))

    def _pixels(self, split: Split, pixels: Array) -> Callable[[int], Array]:
        name = self._name("x", split)
        fits = pixels.ndim == 3 or (pixels.ndim == 4 and pixels.shape[3] in (1, 3))
        if not fits or pixels.dtype.name != "uint8":
            raise RefusedInput(
                f"{self.path}: {name} is {_form(pixels)}; expected uint8 (n, height, width, 3), or grey without the 3"
            )
        self._same_count(split, name, len(pixels))
        shape = (*pixels.shape[1:3], 3)

        def image(index: int) -> Array:
            import numpy

            one = pixels[index]
            return fitted(numpy.broadcast_to(one if one.ndim == 3 else one[..., None], shape), self.size)

        return image

    def _packed(self, split: Split, packed: Array, off: Array) -> Callable[[int], Array]:
        jpeg, name = self._name("jpeg", split), self._name("off", split)
        bytes_ = packed.ndim == 1 and packed.dtype.name == "uint8"
        if not bytes_ or off.ndim != 1 or off.dtype.kind not in "iu":
            raise RefusedInput(
                f"{self.path}: {jpeg} is {_form(packed)} and {name} is {_form(off)}; expected bytes as uint8, and "
                "places in them as whole numbers"
            )
        self._same_count(split, name, len(off) - 1)
        places = off.tolist()
        if places[0] < 0 or places[-1] > len(packed) or places != sorted(places):
            raise RefusedInput(
                f"{self.path}: {name} leads out of {jpeg}; expected rising places from 0 to {len(packed)}: "
                "is the file cut off?"
            )

        def image(index: int) -> Array:
            data = packed[places[index] : places[index + 1]].tobytes()
            return decode(data, f"{split} image {index} of {self.path}", self.size)

        return image

    def _same_count(self, split: Split, name: str, count: int) -> None:
        labels = len(self._labels[split])
        if count != labels:
            raise RefusedInput(
                f"{self.path}: {name} holds {count} images and {self._name('y', split)} {labels} labels; expected as "
                "many"
            )


def _form(array: Array) -> str:
    return f"{array.dtype.name} {array.shape}"


def _names(path: Path) -> list[str]:
    """Names of the arrays in a file."""
    return _guarded(path, lambda arrays: list(arrays.files))  # type: ignore[no-any-return]


def _array(path: Path, name: str) -> Array:
    there = _names(path)
    if name not in there:
        raise RefusedInput(
            f"{path}: there is no array {shown(name)}; it has {', '.join(there)}: name the right one in columns"
        )
    return _guarded(path, lambda arrays: arrays[name])  # type: ignore[no-any-return]


def _guarded(path: Path, read: Callable[[Any], Any]) -> Any:
    """Read from the opened file; what is wrong with it is RefusedInput.

    Zip files, compressed parts and headers in Python's syntax can fail in a dozen ways, so every error counts.
    """
    import numpy

    try:
        with numpy.load(path, allow_pickle=False) as arrays:
            return read(arrays)
    except Exception as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "pickle" in what:
            raise RefusedInput(
                f"{path}: holds pickled objects, which can run code and are never read; save it with arrays of "
                "numbers and texts alone"
            ) from None
        raise RefusedInput(f"{path}: is no whole npz file ({what}); is it cut off? get it again") from None
