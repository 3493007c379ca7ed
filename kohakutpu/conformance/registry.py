"""Which golden file is checked by what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .arrays import GoldenError
from .cluster import check_cluster
from .flits import check_flits
from .formats import check_errata_exp2_wrap, check_mx_quant, check_vec_alu, check_vec_alu_extra, check_vec_cvt
from .mesh import check_mesh, check_mesh_links
from .report import Tally
from .vector import check_vector_core, check_vector_core_published

CHECKS: dict[str, Callable[[Path], list[Tally]]] = {
    "mx_quant.npz": check_mx_quant,
    "vec_alu.npz": check_vec_alu,
    "vec_alu_extra.npz": check_vec_alu_extra,
    "vec_cvt.npz": check_vec_cvt,
    "errata_exp2_wrap.npz": check_errata_exp2_wrap,
    "cluster.npz": check_cluster,
    "vector_core.npz": check_vector_core,
    "vector_core_published.npz": check_vector_core_published,
    "mesh.npz": check_mesh,
    "mesh_links.npz": check_mesh_links,
    "flits/linear_silu_fused.txt": check_flits,
    "flits/linear_silu_staged.txt": check_flits,
}
# Files that describe a golden directory and hold no vectors.
PROSE = frozenset({"README.md"})


def survey(folder: Path) -> tuple[list[str], list[str]]:
    """(known, unknown) file names below `folder`; refused when nothing in it is known."""
    if not folder.is_dir():
        raise GoldenError(f"{folder} is not a directory")
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    known = [name for name in CHECKS if name in names]
    if not known:
        raise GoldenError(f"{folder} holds no golden file; the known names are {', '.join(CHECKS)}")
    return known, [name for name in names if name not in CHECKS and name not in PROSE]
