"""Trains the digit classifier's weights in float64 and writes them as float16: weights.npz. Takes a few seconds.

    python examples/digits/train.py

Biases are weights of inputs that are always 1: pixel 0, and one unit of each hidden layer that passes it on.
"""

from __future__ import annotations

import numpy as np
from network import TRAINING, WEIGHTS, digits, exact

SIZES = (64, 64, 32, 10)
EPOCHS, BATCH, RATE, MOMENTUM, DECAY = 120, 50, 0.05, 0.9, 1e-4


def main() -> int:
    images, labels = digits()
    random = np.random.default_rng(7)
    layers = [random.normal(0, np.sqrt(2 / k), (n, k)) for k, n in zip(SIZES, SIZES[1:], strict=False)]
    speeds = [np.zeros_like(layer) for layer in layers]
    for epoch in range(EPOCHS):
        rate = RATE * 0.5 * (1 + np.cos(np.pi * epoch / EPOCHS))
        for batch in random.permutation(TRAINING).reshape(-1, BATCH):
            values = [images[batch]]
            for layer in layers:
                values.append(values[-1] @ layer.T)
                if layer is not layers[-1]:
                    values[-1] = np.maximum(values[-1], 0)
            shares = np.exp(values[-1] - values[-1].max(1, keepdims=True))
            error = shares / shares.sum(1, keepdims=True)
            error[np.arange(BATCH), labels[batch]] -= 1
            gradients = []
            for layer, below in zip(layers[::-1], values[-2::-1], strict=True):
                gradients.append(error.T @ below / BATCH)
                error = (error @ layer) * (below > 0)
            for layer, speed, gradient in zip(layers, speeds, gradients[::-1], strict=True):
                speed *= MOMENTUM
                speed -= rate * (gradient + DECAY * layer)
                layer += speed
            for layer in layers[:-1]:  # unit 0 is 1, whatever the image
                layer[0] = 0
                layer[0, 0] = 1
    held = {f"w{n}": layer.astype(np.float16) for n, layer in enumerate(layers, 1)}
    np.savez_compressed(WEIGHTS, **held)
    for name, part in (("training", slice(TRAINING)), ("test", slice(TRAINING, None))):
        right = exact(images[part], held).argmax(1) == labels[part]
        print(f"{name}: {100 * right.mean():.2f} % of {len(right)} right")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
