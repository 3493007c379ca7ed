"""Trains the transformer's weights in float64 and writes them as float16: weights.npz. Takes a minute or two.

    python examples/transformer/train.py
"""

from __future__ import annotations

import numpy as np
from transformer import DEPTH, HEADS, SHAPES, TRAINING, WEIGHTS, digits, exact, forward

EPOCHS, BATCH, RATE, DECAY = 40, 50, 3e-3, 0.05
FIRST, SECOND, TINY = 0.9, 0.98, 1e-9  # of Adam


def through_norm(back: np.ndarray, x: np.ndarray, root: np.ndarray, gain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(gradient of x, gradient of the gain)"""
    inner = back * gain
    return root * inner - x * root**3 * (inner * x).mean(-1, keepdims=True), (back * x * root).sum((0, 1))


def against(back: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The gradient of w in x @ w.T"""
    return np.einsum("stn,stk->nk", back, x, optimize=True)


def gradients(w: dict[str, np.ndarray], tokens: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Of the mean cross entropy."""
    v = forward(w, tokens)
    shares = np.exp(v["logits"] - v["logits"].max(1, keepdims=True))
    error = shares / shares.sum(1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1
    back = np.broadcast_to(error[:, None] / len(labels), (*tokens.shape[:2], error.shape[1]))
    g = {"classes": against(back, v["n3"])}
    r, g["norm3"] = through_norm(back @ w["classes"], v["r2"], v["root3"], w["norm3"])
    g["down"] = against(r, v["h"])
    h = r @ w["down"]
    silu = v["g"] * v["s"]
    up, gate = h * silu, h * v["u"] * (v["s"] + silu * (1 - v["s"]))
    g["up"], g["gate"] = against(up, v["n2"]), against(gate, v["n2"])
    inner, g["norm2"] = through_norm(up @ w["up"] + gate @ w["gate"], v["r1"], v["root2"], w["norm2"])
    r = r + inner
    n = np.zeros_like(v["n1"])
    for head in range(HEADS):
        g[f"o{head}"] = against(r, v[f"a{head}"])
        a = r @ w[f"o{head}"]
        p = a @ v[f"v{head}"].swapaxes(-1, -2)
        p = v[f"p{head}"] * (p - (p * v[f"p{head}"]).sum(-1, keepdims=True)) / np.sqrt(DEPTH)
        parts = {
            "q": p @ v[f"k{head}"], "k": p.swapaxes(-1, -2) @ v[f"q{head}"], "v": v[f"p{head}"].swapaxes(-1, -2) @ a,
        }  # fmt: skip
        for part, value in parts.items():
            g[f"{part}{head}"] = against(value, v["n1"])
            n += value @ w[f"{part}{head}"]
    inner, g["norm1"] = through_norm(n, v["e"], v["root1"], w["norm1"])
    g["embed"] = against(r + inner, v["x"])
    return g


def main() -> int:
    tokens, labels = digits()
    random = np.random.default_rng(11)
    w = {
        name: random.normal(0, shape[-1] ** -0.5, shape) if len(shape) > 1 else np.ones(shape)
        for name, shape in SHAPES.items()
    }
    w["classes"] /= tokens.shape[1]
    means, squares = ({name: np.zeros_like(value) for name, value in w.items()} for _ in range(2))
    step, steps = 0, EPOCHS * TRAINING // BATCH
    for _ in range(EPOCHS):
        for batch in random.permutation(TRAINING).reshape(-1, BATCH):
            step += 1
            rate = RATE * 0.5 * (1 + np.cos(np.pi * step / steps)) * min(1, step / 60)
            for name, gradient in gradients(w, tokens[batch], labels[batch]).items():
                means[name] += (1 - FIRST) * (gradient - means[name])
                squares[name] += (1 - SECOND) * (gradient**2 - squares[name])
                change = means[name] / (1 - FIRST**step) / (np.sqrt(squares[name] / (1 - SECOND**step)) + TINY)
                w[name] -= rate * (change + DECAY * w[name])
    held = {name: value.astype(np.float16) for name, value in w.items()}
    np.savez_compressed(WEIGHTS, **held)
    for name, part in (("training", slice(TRAINING)), ("test", slice(TRAINING, None))):
        right = exact(tokens[part], held).argmax(1) == labels[part]
        print(f"{name}: {100 * right.mean():.2f} % of {len(right)} right")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
