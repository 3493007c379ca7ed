"""A classifier of handwritten digits with a transformer block, from kernels of the library on tensors in device memory.

    python examples/transformer/transformer.py [--machine quad] [--transport model] [--samples 16] [--plan]

The images are scikit-learn's, as 16 patches of 2x2 pixels; `train.py` made the weights. Plans the network once, runs
the last 297 images (or the first few of those) in batches, holds every kernel's result of the first batch against the
interpreter, and prints the accuracy beside float64.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from kohakutpu.compiler import Options
from kohakutpu.host.transports import open_transport
from kohakutpu.kernels import flash_attention, linear_add, linear_transposed, matmul, rmsnorm, row_sum, swiglu
from kohakutpu.machine import load
from kohakutpu.session import Plan, Session, Tensor, call

WEIGHTS = Path(__file__).parent / "weights.npz"
TRAINING = 1500  # samples; the others test
SIDE, PATCH = 8, 2
TOKENS = (SIDE // PATCH) ** 2
FEATURES = PATCH * PATCH + TOKENS
WIDTH, HEADS, DEPTH, HIDDEN, CLASSES = 64, 2, 32, 128, 10
EPS = 1e-5
SHAPES = {
    "embed": (WIDTH, FEATURES), "norm1": (WIDTH,), "norm2": (WIDTH,), "norm3": (WIDTH,),
    **{f"{part}{head}": (DEPTH, WIDTH) for head in range(HEADS) for part in "qkv"},
    **{f"o{head}": (WIDTH, DEPTH) for head in range(HEADS)},
    "gate": (HIDDEN, WIDTH), "up": (HIDDEN, WIDTH), "down": (WIDTH, HIDDEN), "classes": (CLASSES, WIDTH),
}  # fmt: skip


TILE = {"gm": 4, "gn": 8, "nk": 1}  # a tile is the 16 tokens of an image by 32 columns
ACROSS = {"gm": 8, "gn": 8, "nk": 1}  # 32 columns by the tokens, for what is read with tokens last
BATCH = 8


def digits() -> tuple[np.ndarray, np.ndarray]:
    """(tokens float64[1797, 16, 20], labels). A token is a patch of 2x2 pixels in 0..1 and which of the 16 it is."""
    data = load_digits()
    grid = SIDE // PATCH
    patches = (data.images / 16).reshape(-1, grid, PATCH, grid, PATCH).swapaxes(2, 3).reshape(-1, TOKENS, PATCH * PATCH)
    places = np.broadcast_to(np.eye(TOKENS), (len(patches), TOKENS, TOKENS))
    return np.concatenate([patches, places], -1), data.target


def weights() -> dict[str, np.ndarray]:
    """float16, by the names and shapes of `SHAPES`."""
    with np.load(WEIGHTS) as held:
        return dict(held)


def normed(x: np.ndarray, gain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(x / sqrt(mean(x^2) + eps) * gain, the reciprocal root)"""
    root = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
    return x * root * gain, root


def forward(w: dict[str, np.ndarray], tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Every value of the network by name, float64; `logits` is [samples, 10]."""
    v = {"x": tokens, "e": tokens @ w["embed"].T}
    v["n1"], v["root1"] = normed(v["e"], w["norm1"])
    r = v["e"]
    for h in range(HEADS):
        for part in "qkv":
            v[f"{part}{h}"] = v["n1"] @ w[f"{part}{h}"].T
        scores = v[f"q{h}"] @ v[f"k{h}"].swapaxes(-1, -2) / np.sqrt(DEPTH)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        v[f"p{h}"] = shares / shares.sum(-1, keepdims=True)
        v[f"a{h}"] = v[f"p{h}"] @ v[f"v{h}"]
        r = r + v[f"a{h}"] @ w[f"o{h}"].T
    v["r1"] = r
    v["n2"], v["root2"] = normed(r, w["norm2"])
    v["g"], v["u"] = v["n2"] @ w["gate"].T, v["n2"] @ w["up"].T
    v["s"] = 1 / (1 + np.exp(-v["g"]))
    v["h"] = v["g"] * v["s"] * v["u"]
    v["r2"] = r + v["h"] @ w["down"].T
    v["n3"], v["root3"] = normed(v["r2"], w["norm3"])
    v["logits"] = (v["n3"] @ w["classes"].T).sum(1)
    return v


def exact(tokens: np.ndarray, held: dict[str, np.ndarray]) -> np.ndarray:
    """The network in float64: logits [samples, 10]."""
    return forward({name: value.astype(float) for name, value in held.items()}, tokens)["logits"]


# ---- on the machine -------------------------------------------------------------------------------------


def network(session: Session, *, preq: bool = False) -> Callable[..., Tensor]:
    """The model function of tokens [samples, 16, 20] to logits [samples, 10, 1], its weights pinned. `preq`: the
    weights lie in memory as MXFP7."""
    w = {name: session.pin(name, array) for name, array in weights().items()}

    def quantised(*names: str) -> Options:
        return Options(preq=names if preq else ())

    def transformer(x: Tensor) -> Tensor:
        r = call(matmul, a=x, b=w["embed"], options=quantised("b"), **TILE).named("embedded")
        n = call(rmsnorm, x=r, w=w["norm1"]).named("n1")
        for head in range(HEADS):
            q = call(matmul, a=n, b=w[f"q{head}"], options=quantised("b"), **TILE).named(f"queries{head}")
            k = call(matmul, a=n, b=w[f"k{head}"], options=quantised("b"), **TILE).named(f"keys{head}")
            v = call(linear_transposed, x=n, w=w[f"v{head}"], options=quantised("w"), **ACROSS).named(f"values{head}")
            o = call(flash_attention, q=q, k=k, v=v, block=32, gm=4).named(f"attended{head}")
            r = call(linear_add, x=o, w=w[f"o{head}"], r=r, options=quantised("w"), **TILE).named(f"r1.{head}")
        n = call(rmsnorm, x=r, w=w["norm2"]).named("n2")
        h = call(swiglu, x=n, wg=w["gate"], wu=w["up"], fuse=False, options=quantised("wg", "wu"), **TILE).named(
            "hidden"
        )
        r = call(linear_add, x=h, w=w["down"], r=r, options=quantised("w"), **TILE).named("r2")
        n = call(rmsnorm, x=r, w=w["norm3"]).named("n3")
        scores = call(linear_transposed, x=n, w=w["classes"], options=quantised("w"), **ACROSS).named("scores")
        return call(row_sum, x=scores).named("logits")

    return transformer


def planned(session: Session, samples: int, *, preq: bool = False) -> Plan:
    return session.plan(network(session, preq=preq), x=(samples, TOKENS, FEATURES))


def meant(plan: Plan, tokens: np.ndarray) -> np.ndarray:
    """Logits [samples, 10] by the interpreter, float16."""
    values = plan.meant(x=tokens.astype(np.float16))
    return values[plan.outputs["logits"]].view(np.float16)[..., 0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default="quad")
    parser.add_argument("--transport", default="model")
    parser.add_argument("--samples", type=int, default=16, help="test images, a multiple of 8 (at most 296)")
    parser.add_argument("--preq", action="store_true", help="weights in memory as MXFP7")
    parser.add_argument("--plan", action="store_true", help="print the plan and run nothing")
    args = parser.parse_args()
    machine = load(args.machine)
    if args.plan:
        print(planned(Session(machine), BATCH, preq=args.preq).summary())
        return 0
    tokens, labels = (part[TRAINING : TRAINING + args.samples // BATCH * BATCH] for part in digits())
    reference = exact(tokens.astype(np.float16).astype(float), weights())
    with open_transport(args.transport, machine) as transport:
        plan = planned(Session(machine, transport), BATCH, preq=args.preq)
        boundaries = plan.verify(x=tokens[:BATCH].astype(np.float16))
        print("\n".join(map(str, boundaries)))
        outcomes = [plan.run(x=batch.astype(np.float16)) for batch in tokens.reshape(-1, BATCH, TOKENS, FEATURES)]
    found = np.concatenate([outcome.outputs["logits"][..., 0] for outcome in outcomes])
    wanted = np.concatenate([meant(plan, batch) for batch in tokens.reshape(-1, BATCH, TOKENS, FEATURES)])
    error = np.abs(found.astype(float) - reference) / np.abs(reference).max()
    for name, logits in (("float64", reference), ("interpreter", wanted), ("machine", found)):
        print(f"{name:12} {100 * (logits.argmax(1) == labels).mean():.2f} % of {len(labels)} right")
    print(
        f"error, of the largest logit: median {np.median(error):.2%}, p99 {np.quantile(error, 0.99):.2%}, max "
        f"{error.max():.2%}"
    )
    equal = all(row.equal for row in boundaries) and (found.view(np.uint16) == wanted.view(np.uint16)).all()
    print(
        f"{machine.name}: {outcomes[0].elapsed:,} {outcomes[0].unit} a batch of {BATCH}, {len(plan.steps)} steps, peak "
        f"{plan.peak_bytes:,} bytes of memory; bytes {'equal' if equal else 'DIFFER'}"
    )
    return 0 if equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
