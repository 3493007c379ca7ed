"""Golden archives, opened strictly: nothing in a file goes unread, and a damaged file is refused by name.

A checker asks for each array with the dtype and shape that the golden README gives it, says of the others why
they are not compared (`leave`), and ends with `close`, which refuses what is left. So an array that is missing,
unknown, cut, misshapen or rotten, or a count that was lowered, ends a check instead of shortening it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

import numpy as np

from kohakutpu.errata import REGISTRY

MEMBER = ".npy"


class GoldenError(ValueError):
    """Golden data that cannot be checked: no known file, or a file that is not what its name promises."""


class Arrays:
    """The arrays of one archive whose names begin with `prefix`, keeping count of those read.

    Every accessor raises `GoldenError`, naming file and array, for what is missing or is not as asked.
    """

    def __init__(self, path: Path, arrays: dict[str, np.ndarray], unread: set[str], prefix: str = ""):
        self.path, self.prefix = path, prefix
        self._arrays, self._unread = arrays, unread

    def under(self, prefix: str) -> Arrays:
        """The arrays of one case: names are taken to follow `prefix`; reads count in the whole archive."""
        return Arrays(self.path, self._arrays, self._unread, self.prefix + prefix)

    def names(self) -> list[str]:
        """What follows the prefix, of every array that has it, in the file's order."""
        return [name.removeprefix(self.prefix) for name in self._arrays if name.startswith(self.prefix)]

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self._arrays

    def error(self, name: str, text: str) -> GoldenError:
        return GoldenError(f"{self.path}: array {self.prefix + name!r} {text}")

    def _take(self, name: str) -> np.ndarray:
        full = self.prefix + name
        if full not in self._arrays:
            near = sorted(n for n in self._arrays if n.startswith(self.prefix))
            more = f" and {len(near) - 12} more" if len(near) > 12 else ""
            raise self.error(name, f"is missing; it holds {', '.join(near[:12]) or 'none like it'}{more}")
        self._unread.discard(full)
        return self._arrays[full]

    def array(self, name: str, dtype: str, *shape: int | None) -> np.ndarray:
        """An array of exactly this dtype and shape; None stands for any length of at least 0."""
        array = self._take(name)
        fits = array.ndim == len(shape) and all(w in (None, have) for w, have in zip(shape, array.shape, strict=True))
        if array.dtype != np.dtype(dtype) or not fits:
            wanted = ", ".join("any" if length is None else str(length) for length in shape)
            raise self.error(name, f"is {array.dtype}{list(array.shape)}, expected {dtype}[{wanted}]")
        return array

    def integer(self, name: str, least: int, most: int | None = None) -> int:
        """A scalar of the archive (int64), within its range."""
        value = int(self.array(name, "int64"))
        if value < least or (most is not None and value > most):
            raise self.error(name, f"is {value}, expected {least}..{'' if most is None else most}")
        return value

    def text(self, name: str) -> str:
        array = self._take(name)
        if array.dtype.kind != "U" or array.ndim:
            raise self.error(name, f"is {array.dtype}{list(array.shape)}, expected one string")
        return str(array)

    def errata(self, name: str = "errata") -> frozenset[str]:
        """The identifiers of a comma-separated list. Refuses those that the registry of errata lacks."""
        named = self.text(name)
        identifiers = frozenset(named.split(",")) if named else frozenset()
        if unknown := identifiers - REGISTRY.keys():
            raise self.error(name, f"names unknown errata {', '.join(sorted(unknown))}")
        return identifiers

    def leave(self, reasons: Mapping[str, str], *, optional: bool = False) -> None:
        """Declare that those arrays are not compared; `reasons` says why, by name. `optional` ones may be missing."""
        for name in reasons:
            if name in self or not optional:
                self._take(name)

    def close(self) -> None:
        """Refuse arrays that no check read."""
        if self._unread:
            names = sorted(self._unread)
            more = f" and {len(names) - 12} more" if len(names) > 12 else ""
            raise GoldenError(f"{self.path}: nothing compares {', '.join(names[:12])}{more}")


def open_arrays(path: Path) -> Arrays:
    """Every array of an archive, read to its last byte, so that each member's CRC is verified.

    `np.load` alone would not do: it reads a member when asked, and no further than the member's own header says.
    Raises `GoldenError` for what is no archive or has a damaged member, `OSError` for a file that cannot be read.
    """
    content = path.read_bytes()
    arrays: dict[str, np.ndarray] = {}
    what = "not a readable archive of arrays"
    try:
        with ZipFile(io.BytesIO(content)) as archive:
            for member in archive.namelist():
                name = member.removesuffix(MEMBER)
                what = f"array {name!r} is not readable"
                if name == member or name in arrays:
                    raise ValueError(f"member {member} occurs twice or is no {MEMBER} file")
                stream = io.BytesIO(archive.read(member))
                arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
                if stream.read(1):
                    raise ValueError("there is more in it than its header says")
    except Exception as error:  # hostile bytes: zipfile, zlib, ast and numpy each raise their own kinds
        raise GoldenError(f"{path}: {what}: {error or type(error).__name__}") from error
    if not arrays:
        raise GoldenError(f"{path}: the archive holds no array")
    return Arrays(path, arrays, set(arrays))


@contextmanager
def replaying(path: Path, case: str) -> Iterator[None]:
    """Around the replay of one case: values that no flit, field or memory can hold refuse the file by case."""
    try:
        yield
    except (GoldenError, OSError):
        raise
    except (ValueError, LookupError, ArithmeticError) as error:
        raise GoldenError(f"{path}: {case} cannot be replayed: {error or type(error).__name__}") from error
