"""A small real network, end to end: scikit-learn's digits through three products on the machine."""

from pathlib import Path

import numpy as np
import pytest

from kohakutpu.compiler import compile_kernel
from kohakutpu.lang.files import module_of_file
from kohakutpu.machine import load

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "digits"


@pytest.fixture(scope="module")
def network():
    return module_of_file(FOLDER / "network.py")


@pytest.fixture(scope="module")
def test_set(network):
    images, labels = network.digits()
    return images[network.TRAINING :], labels[network.TRAINING :]


def test_accuracy_is_that_of_float64(network, test_set):
    """On all 297 test images what the kernel means is as often right as float64 (274 of 297), and nearly always alike."""
    images, labels = test_set
    logits = network.meant("ship_3x2", images).astype(float)
    exact = network.exact(images, network.weights())
    right, wanted = ((values.argmax(1) == labels).sum() for values in (logits, exact))
    assert wanted == 274 and abs(int(right) - 274) <= 3
    assert (logits.argmax(1) == exact.argmax(1)).mean() > 0.98
    error = np.abs(logits - exact) / np.abs(exact).max()
    assert 0 < np.median(error) < 0.01 and error.max() < 0.05


@pytest.mark.parametrize("machine, samples", [("mm_mesh", 16), ("quad", 32), ("ship_3x2", 40)])
def test_the_machine_computes_what_the_kernel_means(network, test_set, machine, samples):
    images = test_set[0][:samples]
    artifact, result = network.on_machine(machine, images)
    assert (result.run.outputs["y"] == network.meant(machine, images).view(np.uint16)).all()
    assert sum(not stage.statements for stage in artifact.stages) == 2, "two copies, by the vector cores"


@pytest.mark.slow
def test_every_test_image_on_the_machine(network, test_set):
    images, labels = test_set
    _, result = network.on_machine("ship_3x2", images)
    found = result.run.outputs["y"]
    assert (found == network.meant("ship_3x2", images).view(np.uint16)).all()
    assert (found.view(np.float16).argmax(1) == labels).mean() > 0.91


@pytest.mark.slow
def test_the_gates_compute_the_same(network, test_set):
    from sim.kernels import run_rtl

    images = test_set[0][:8]
    artifact, result = network.on_machine("mm_mesh", images)
    gates = run_rtl(artifact, load("mm_mesh"), network.operands_of(images))
    assert gates.run.images == result.run.images and gates.cycles == result.cycles


def test_training_is_repeatable(network, tmp_path, monkeypatch, capsys):
    """`train.py` makes the weights that are in the repository, up to what a float64 sum's order can change."""
    train = module_of_file(FOLDER / "train.py")
    monkeypatch.setattr(train, "WEIGHTS", tmp_path / "weights.npz")
    assert train.main() == 0 and "test: 9" in capsys.readouterr().out
    held = network.weights()
    with np.load(tmp_path / "weights.npz") as file:
        made = dict(file)
    assert all(np.abs(made[name].astype(float) - held[name].astype(float)).max() < 0.02 for name in held)


def test_memory_is_what_was_planned(network, test_set):
    """Weights stay, activations share: less than all buffers one behind the other."""
    operands = network.operands_of(test_set[0][:64])
    artifact = compile_kernel(
        network.classifier, load("quad"), {name: array.shape for name, array in operands.items()}, network.KNOBS
    )
    assert artifact.peak_bytes < sum(image.bytes for image in artifact.buffers)
