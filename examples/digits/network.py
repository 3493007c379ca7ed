"""A classifier of handwritten digits on the machine: three products with ReLU between them, in one kernel.

    python examples/digits/network.py [--machine ship_3x2] [--samples 64]

The images are scikit-learn's (8x8 pixels, 1797 of them, the last 297 for testing); `train.py` made the weights. Prints
the accuracy of float64, of what the kernel means and of the cycle model, and how far their numbers are apart.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from kohakutpu import lang as L
from kohakutpu.compiler import Artifact, compile_kernel
from kohakutpu.host.simulate import ModelRun, run_model, run_reference
from kohakutpu.kernels.linear import product
from kohakutpu.lang import dims, kernel, units
from kohakutpu.machine import load

WEIGHTS = Path(__file__).parent / "weights.npz"
TRAINING = 1500  # samples; the others test
KNOBS = {"gm": 8, "gn": 8, "nk": 1}

M, K, H, G, N = dims("M, K, H, G, N")


@kernel
def classifier(x=L.In(M, K), w1=L.In(H, K), w2=L.In(G, H), w3=L.In(N, G), y=L.Out(M, N), *, gm=8, gn=8, nk=1,
               part=8192):  # fmt: skip
    """y = relu(relu(x @ w1.T) @ w2.T) @ w3.T"""
    t1, h1, t2, h2 = L.temp(M, H), L.temp(M, H), L.temp(M, G), L.temp(M, G)
    with units(x.tiles(gm), w1.tiles(gn)) as (i, j):
        t1[i, j] <<= product(x, w1, i, j, gm, gn, nk)
    h1 <<= L.relu(t1)
    with units(h1.tiles(gm), w2.tiles(gn)) as (i, j):
        t2[i, j] <<= product(h1, w2, i, j, gm, gn, nk)
    h2 <<= L.relu(t2)
    with units(h2.tiles(gm), w3.tiles(gn)) as (i, j):
        y[i, j] <<= product(h2, w3, i, j, gm, gn, nk)


def digits() -> tuple[np.ndarray, np.ndarray]:
    """(images float64[1797, 64] in 0..1, labels). Pixel 0, which is black in all of them, is 1: the weights' bias."""
    data = load_digits()
    images = data.data / 16
    images[:, 0] = 1
    return images, data.target


def weights() -> dict[str, np.ndarray]:
    """float16 w1[64, 64], w2[32, 64], w3[10, 32]."""
    with np.load(WEIGHTS) as held:
        return dict(held)


def exact(images: np.ndarray, held: dict[str, np.ndarray]) -> np.ndarray:
    """The network in float64."""
    hidden = images
    for name in ("w1", "w2"):
        hidden = np.maximum(hidden @ held[name].astype(float).T, 0)
    return hidden @ held["w3"].astype(float).T


def operands_of(images: np.ndarray) -> dict[str, np.ndarray]:
    return {"x": images.astype(np.float16), **weights()}


def on_machine(machine_name: str, images: np.ndarray) -> tuple[Artifact, ModelRun]:
    """The network on the cycle models of a machine."""
    machine, operands = load(machine_name), operands_of(images)
    artifact = compile_kernel(classifier, machine, {name: array.shape for name, array in operands.items()}, KNOBS)
    return artifact, run_model(artifact, machine, operands)


def meant(machine_name: str, images: np.ndarray) -> np.ndarray:
    """What the kernel means, float16[M, 10]."""
    image = run_reference(classifier, KNOBS, operands_of(images), load(machine_name))
    return image.outputs["y"].view(np.float16)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default="ship_3x2")
    parser.add_argument("--samples", type=int, default=64, help="test images that the cycle model runs (at most 297)")
    args = parser.parse_args()
    images, labels = (part[TRAINING:] for part in digits())
    images, labels = images[: args.samples], labels[: args.samples]
    reference = exact(images.astype(np.float16).astype(float), weights())
    interpreted = meant(args.machine, images)
    artifact, result = on_machine(args.machine, images)
    found = result.run.outputs["y"]
    equal = bool((found == interpreted.view(np.uint16)).all())
    spread = np.abs(reference).max()
    error = np.abs(interpreted.astype(float) - reference) / spread
    for name, logits in (("float64", reference), ("interpreter", interpreted), ("cycle model", found.view(np.float16))):
        print(f"{name:12} {100 * (logits.argmax(1) == labels).mean():.2f} % of {len(labels)} right")
    quantiles = f"median {np.median(error):.2%}, p99 {np.quantile(error, 0.99):.2%}, max {error.max():.2%}"
    print(f"error, of the largest logit: {quantiles}")
    sizes = f"{artifact.flit_count} flits, {artifact.peak_bytes:,} bytes of memory"
    print(f"{args.machine}: {result.cycles:,} cycles, {sizes}; bytes {'equal' if equal else 'DIFFER'}")
    return 0 if equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
