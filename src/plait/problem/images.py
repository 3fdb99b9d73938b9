"""Images of data files, decoded one by one, and folders with one subfolder a class. Pillow is loaded here only.

Only the images of the split that was asked for are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.errors import RefusedInput
from plait.problem.content import key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")  # those that run no other program
_DEEP = ("I", "F")  # beginnings of the names of modes with more than 8 bits


class Images:
    """What sources of images have in common: they are walked through one by one."""

    def walk(self, rows: Sequence[int]) -> Iterator[Array]:
        """uint8 (height, width, 3) by row, for rising rows."""
        raise NotImplementedError

    def where(self, row: int) -> str:
        raise NotImplementedError

    def exact(self, row: int) -> str:
        return ""

    def keys(self, rows: Sequence[int]) -> list[bytes]:
        return [key(image) for image in self.walk(rows)]

    def take(self, rows: Sequence[int]) -> Array:
        """uint8 (n, height, width, 3). RefusedInput where the images have not all the same size."""
        import numpy

        made: Array = numpy.zeros((0, 0, 0, 3), dtype=numpy.uint8)
        order = sorted(range(len(rows)), key=lambda i: rows[i])
        for i, image in zip(order, self.walk([rows[i] for i in order]), strict=True):
            if i == order[0]:
                made = numpy.empty((len(rows), *image.shape), dtype=numpy.uint8)
            if image.shape != made.shape[1:]:
                raise RefusedInput(
                    f"{self.where(rows[i])} is {_sides(image)}, {self.where(rows[order[0]])} is {_sides(made[0])}; "
                    "expected images of one size: write size: 224, for example, to crop and resize them"
                )
            made[i] = image
        return made


def _sides(image: Array) -> str:
    return f"{image.shape[1]}x{image.shape[0]}"


@dataclass(frozen=True)
class Folder(Images):
    """A folder with one subfolder a class, which holds image files. Files beside the subfolders are not looked at."""

    path: Path
    size: int | None = None
    splits: None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the subfolders, sorted by code point."""
        folders = [entry.name for entry in self.path.iterdir() if entry.is_dir()]
        return tuple(sorted(name for name in folders if not name.startswith(".")))

    @cached_property
    def files(self) -> list[Path]:
        """All images, class by class, sorted by name."""
        found = []
        for name in self.names:
            entries = sorted(e for e in (self.path / name).iterdir() if not e.name.startswith("."))
            for entry in entries:
                if entry.suffix.lower() not in SUFFIXES or not entry.is_file():
                    raise RefusedInput(
                        f"{entry}: is no image; expected files ending in {', '.join(SUFFIXES)} in a folder for each "
                        "class: take it out, or give the folder that holds the classes"
                    )
            found += entries
        return found

    def __len__(self) -> int:
        return len(self.files)

    @cached_property
    def labels(self) -> list[int | str]:
        return [file.parent.name for file in self.files]

    def where(self, row: int) -> str:
        return str(self.files[row])

    def walk(self, rows: Sequence[int]) -> Iterator[Array]:
        for row in rows:
            yield decode(self.files[row], self.where(row), self.size)


def decode(file: Path | bytes, where: str, size: int | None = None) -> Array:
    """An image file as uint8 (height, width, 3); grey is repeated, transparency left out. size: see `fitted`."""
    import numpy

    image = _pillow(where)
    source = BytesIO(file) if isinstance(file, bytes) else file
    try:
        with image.open(source, formats=_FORMATS) as opened:
            if opened.mode.startswith(_DEEP):
                raise RefusedInput(
                    f"{where}: its pixels have more than 8 bits (mode {opened.mode}); convert it first"
                )
            pixels = opened.convert("RGB")
    except (OSError, SyntaxError, ValueError, EOFError, image.DecompressionBombError) as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(source, BytesIO):
            what = what.replace(repr(source), "these bytes")
        raise RefusedInput(f"{where}: is no whole image ({what}); is it cut off? get it again") from None
    return fitted(numpy.asarray(pixels), size)


def fitted(pixels: Array, size: int | None) -> Array:
    """The square in the middle, resized to size x size (Lanczos); all of it as it is where size is None."""
    import numpy

    if size is None or pixels.shape[:2] == (size, size):
        return pixels
    height, width = pixels.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    image = _pillow("size")
    square = image.fromarray(numpy.ascontiguousarray(pixels[top : top + side, left : left + side]))
    return numpy.asarray(square.resize((size, size), image.Resampling.LANCZOS))


def _pillow(where: str) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise RefusedInput(
            f"{where}: images need pillow; install it with: pip install 'plait[data]'"
        ) from None
    return Image
