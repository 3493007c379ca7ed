"""Cut the vector core's recordings out of a full golden directory.

    python tests/data/sample_vector.py ../shared/golden tests/data

Writes `golden/vector_core.npz` and `golden/vector_core_published.npz`, a few programs of each renumbered from 0,
and `vector_links.npz`, every flit that `mesh_links.npz` shows on the vector core's two links: per run `rNN_flits`
uint32[m,9], `rNN_out` (1 sent by the core), `rNN_cycle`, `rNN_errata` and the memory words before and after.
"""

import sys
from pathlib import Path

import numpy as np

# one of every kind: tails, loops, predicates, reductions, chains, shuffles, walks, fills, drains, faults, bursts, exp2
CORE = (0, 9, 12, 13, 15, 21, 22, 23, 24, 27, 28, 29, 31, 34, 96, 97, 100, 102)
# every erratum that the models reproduce, traffic of every kind, a fault, and one whose timing leaves it out
PUBLISHED = (0, 21, 25, 28, 29, 33, 34, 37, 38, 46, 127, 153)
OUT_LINK, IN_LINK = 4, 5


def sample_programs(source: Path, target: Path, chosen: tuple[int, ...]) -> None:
    with np.load(source, allow_pickle=False) as archive:
        kept = {"n_programs": np.int64(len(chosen))}
        for number, program in enumerate(chosen):
            prefix = f"p{program:03d}_"
            kept |= {f"p{number:03d}_{key[5:]}": archive[key] for key in archive.files if key.startswith(prefix)}
    np.savez_compressed(target, **kept)


def sample_links(source: Path, target: Path) -> None:
    kept = {}
    with np.load(source / "mesh_links.npz", allow_pickle=False) as archive:
        for number in range(int(archive["n_runs"])):
            run = f"r{number:02d}_"
            link = archive[run + "link"]
            mine = (link == OUT_LINK) | (link == IN_LINK)
            if (link == IN_LINK).any():
                kept |= {run + key: archive[run + key] for key in ("name", "errata", "mem_before", "mem_after")}
                kept |= {run + key: archive[run + key][mine] for key in ("flits", "cycle")}
                kept[run + "out"] = (link[mine] == OUT_LINK).astype(np.uint8)
    np.savez_compressed(target / "vector_links.npz", **kept)


if __name__ == "__main__":
    golden, data = Path(sys.argv[1]), Path(sys.argv[2])
    sample_programs(golden / "vector_core.npz", data / "golden" / "vector_core.npz", CORE)
    sample_programs(golden / "vector_core_published.npz", data / "golden" / "vector_core_published.npz", PUBLISHED)
    sample_links(golden, data)
