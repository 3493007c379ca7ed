"""Cut the cluster's recordings out of a full golden directory.

    python tests/data/sample_cluster.py ../shared/golden tests/data

Writes `golden/cluster.npz`, a few of its cases renumbered from 0, and `cluster_links.npz`, every flit that
`mesh_links.npz` shows on the cluster's two links: per run `rNN_flits` uint32[m,9], `rNN_out` (1 sent by the
cluster) and `rNN_cycle`.
"""

import sys
from pathlib import Path

import numpy as np

CASES = (0, 2, 4, 10, 21, 31, 40, 44)  # every shape class, odd anchors, the quantiser, accumulation over chunks
OUT_LINK, IN_LINK = 2, 3


def sample_cases(source: Path, target: Path) -> None:
    with np.load(source / "cluster.npz", allow_pickle=False) as archive:
        kept = {"n_cases": np.int64(len(CASES))}
        for number, case in enumerate(CASES):
            prefix = f"c{case:03d}_"
            kept |= {f"c{number:03d}_{key[5:]}": archive[key] for key in archive.files if key.startswith(prefix)}
    np.savez_compressed(target / "golden" / "cluster.npz", **kept)


def sample_links(source: Path, target: Path) -> None:
    kept = {}
    with np.load(source / "mesh_links.npz", allow_pickle=False) as archive:
        for number in range(int(archive["n_runs"])):
            run = f"r{number:02d}_"
            link = archive[run + "link"]
            mine = (link == OUT_LINK) | (link == IN_LINK)
            if mine.any():
                kept[run + "name"] = archive[run + "name"]
                kept[run + "flits"] = archive[run + "flits"][mine]
                kept[run + "out"] = (link[mine] == OUT_LINK).astype(np.uint8)
                kept[run + "cycle"] = archive[run + "cycle"][mine]
    np.savez_compressed(target / "cluster_links.npz", **kept)


if __name__ == "__main__":
    sample_cases(Path(sys.argv[1]), Path(sys.argv[2]))
    sample_links(Path(sys.argv[1]), Path(sys.argv[2]))
