"""Python files as modules: what declares kernels and models need not be installed."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


@contextmanager
def _searched_first(folder: str) -> Iterator[None]:
    """Imports look in `folder` first, as for `python FILE`; afterwards last, so that nothing else is hidden by its names."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


def module_of_file(path: Path, prefix: str = "_kernel_file_") -> ModuleType:
    """The file, run as a module of its own, which finds modules that lie beside it.

    Raises FileNotFoundError, and whatever the file raises: then no such module is left behind.
    """
    path = path.resolve(strict=True)
    name = prefix + hashlib.sha256(str(path).encode()).hexdigest()[:16]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _searched_first(str(path.parent)):
            spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module
