"""Cut the number-format files of a full golden directory down to the sample kept in `tests/data/golden`.

    python tests/data/sample_formats.py ../shared/golden tests/data/golden

Arrays that share a row count and a name up to the last `_` are cut together, at evenly spaced rows.
"""

import sys
from pathlib import Path

import numpy as np

ROWS = {"mx_quant": 120, "vec_alu": 500, "vec_alu_extra": 1000, "vec_cvt": 3000, "errata_exp2_wrap": 500}


def sample(source: Path, target: Path) -> None:
    for name, rows in ROWS.items():
        with np.load(source / f"{name}.npz", allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        cut = {key: value[np.linspace(0, len(value) - 1, rows).astype(int)] for key, value in arrays.items()}
        np.savez_compressed(target / f"{name}.npz", **cut)


if __name__ == "__main__":
    sample(Path(sys.argv[1]), Path(sys.argv[2]))
