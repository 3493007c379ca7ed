"""The kernels of Python files, folders and modules."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType

from kohakutpu.lang.files import module_of_file
from kohakutpu.xpu.errors import XpuError
from kohakutpu.xpu.kernel import Kernel


class LoadError(XpuError):
    """Kernels that cannot be had: what was named, and why."""


@cache
def module_of(path: Path) -> ModuleType:
    """A file as a module, once per process however often it is asked for."""
    return module_of_file(path, f"_xpu_kernels_{path.stem}_")


def _files(where: str) -> list[Path] | None:
    path = Path(where)
    if path.is_dir():
        found = sorted(path.glob("*.py"))
        if not found:
            raise LoadError(f"{where}: the folder holds no .py file")
        return found
    if where.endswith(".py"):
        if not path.is_file():
            raise LoadError(f"{where}: there is no such file")
        return [path]
    return None


def kernels_of(module: ModuleType) -> list[Kernel]:
    """What a module declares: kernels, and for a template the members that it lists."""
    found = []
    for value in vars(module).values():
        if isinstance(value, Kernel):
            found += list(value.instances.values()) if value.is_template else [value]
    return found


def load(places: Iterable[str]) -> list[Kernel]:
    """The kernels that files, folders of files and dotted modules declare, each once.

    Raises LoadError for what is not there, fails to load, or declares no kernel at all.
    """
    found: dict[int, Kernel] = {}
    for where in places:
        try:
            files = _files(where)
            modules = [importlib.import_module(where)] if files is None else [module_of(path) for path in files]
        except XpuError:
            raise
        except Exception as error:
            raise LoadError(f"{where}: failed to load: {type(error).__name__}: {error}") from error
        here = [kernel for module in modules for kernel in kernels_of(module)]
        if not here:
            raise LoadError(f"{where}: no kernel is declared there")
        found |= {id(kernel): kernel for kernel in here}
    return list(found.values())
