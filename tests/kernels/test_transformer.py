"""A transformer block on the machine: scikit-learn's digits through kernels on tensors that stay in its memory."""

from pathlib import Path

import numpy as np
import pytest

from kohakutpu.cli.main import main as kohakutpu
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.host.transports import open_transport
from kohakutpu.lang.files import module_of_file
from kohakutpu.machine import load
from kohakutpu.model.system import System
from kohakutpu.session import Session

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "transformer"


@pytest.fixture(scope="module")
def model():
    return module_of_file(FOLDER / "transformer.py")


@pytest.fixture(scope="module")
def test_set(model):
    tokens, labels = model.digits()
    return tokens[model.TRAINING :].astype(np.float16), labels[model.TRAINING :]


def planned(model, machine, samples, **more):
    description = load(machine)
    return model.planned(Session(description, ModelTransport(System(description))), samples, **more)


def test_accuracy_is_that_of_float64(model, test_set):
    """What the kernels mean is about as often right as float64 on 80 of the test images, and nearly always alike."""
    tokens, labels = test_set[0][:80], test_set[1][:80]
    logits = model.meant(planned(model, "quad", 80), tokens).astype(float)
    exact = model.exact(tokens.astype(float), model.weights())
    right, wanted = ((values.argmax(1) == labels).sum() for values in (logits, exact))
    assert wanted == 77 and abs(int(right) - int(wanted)) <= 2
    assert (logits.argmax(1) == exact.argmax(1)).mean() > 0.96
    error = np.abs(logits - exact) / np.abs(exact).max()
    assert 0 < np.median(error) < 0.03 and error.max() < 0.2


@pytest.mark.parametrize("machine, preq", [("mm_mesh", False), ("quad", True), ("ship_3x2", False)])
def test_every_kernel_computes_what_it_means(model, test_set, machine, preq):
    plan = planned(model, machine, 1, preq=preq)
    rows = plan.verify(x=test_set[0][:1])
    assert len(rows) == len(plan.graph.calls) == 18 and not [str(row) for row in rows if not row.equal]
    assert np.isfinite(plan.run(x=test_set[0][1:2]).outputs["logits"].astype(float)).all()


def test_the_plan_is_printed(capsys):
    command = ["plan", f"{FOLDER}/transformer.py:network", "--machine", "quad"]
    assert kohakutpu([*command, "--shape", "x=8x16x20"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("transformer for quad: 18 kernels, ") and "0 of 13 by the host" in text and "peak    " in text
    for more, reason in (([], "transformer is given no inputs"), (["--shape", "x=8x16x21"], "K is 21 for one operand and 20"),
                         (["--shape", "x=8x16x20", "--knob", "gm=2"], "is given a session and {'gm': 2}")):  # fmt: skip
        assert kohakutpu([*command, *more]) == 2
        assert reason in capsys.readouterr().err
    assert kohakutpu(["plan", "kohakutpu.kernels:matmul", "--shape", "x=8x8"]) == 2
    assert "kohakutpu.kernels:matmul is a kernel" in capsys.readouterr().err
    assert kohakutpu(["plan", f"{FOLDER}/transformer.py:digits"]) == 2
    assert "is given a session" in capsys.readouterr().err


@pytest.mark.slow
def test_every_test_image_on_the_machine(model, test_set):
    """Batches of 27, eleven times: weights are uploaded once."""
    tokens, labels = test_set
    plan = planned(model, "ship_3x2", 27)
    logits = np.concatenate([plan.run(x=batch).outputs["logits"][..., 0] for batch in tokens.reshape(-1, 27, *tokens.shape[1:])])
    meant = np.concatenate([model.meant(plan, batch) for batch in tokens.reshape(-1, 27, *tokens.shape[1:])])
    assert (logits.view(np.uint16) == meant.view(np.uint16)).all()
    exact = model.exact(tokens.astype(float), model.weights())
    right, wanted = ((values.argmax(1) == labels).sum() for values in (logits.astype(float), exact))
    print(f"\nfloat64 {wanted} of {len(labels)}, the machine {right}; alike {(logits.argmax(1) == exact.argmax(1)).sum()}")
    assert wanted == 284 and abs(int(right) - int(wanted)) <= 4


@pytest.mark.slow
def test_the_gates_compute_the_same(model, test_set):
    outcomes = []
    machine = load("mm_mesh")
    for spec in ("model", "rtl"):
        with open_transport(spec, machine) as transport:
            plan = model.planned(Session(machine, transport), 1)
            rows = plan.verify(x=test_set[0][:1])
            assert not [str(row) for row in rows if not row.equal]
            outcome = plan.run(x=test_set[0][:1])
            outcomes.append((outcome.outputs["logits"].tobytes(), outcome.elapsed))
    assert outcomes[0] == outcomes[1]


@pytest.mark.slow
def test_training_is_repeatable(model, tmp_path, monkeypatch, capsys):
    """`train.py` makes weights that are as good as those in the repository, and close to them."""
    train = module_of_file(FOLDER / "train.py")
    monkeypatch.setattr(train, "WEIGHTS", tmp_path / "weights.npz")
    assert train.main() == 0 and "test: 9" in capsys.readouterr().out
    held = model.weights()
    with np.load(tmp_path / "weights.npz") as file:
        made = dict(file)
    assert made.keys() == held.keys()
    assert all(np.median(np.abs(made[name].astype(float) - held[name].astype(float))) < 0.01 for name in held)
