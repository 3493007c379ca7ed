"""Launches of the ktpu back end on the gates are recorded and replay as those on the models do."""

from pathlib import Path

from kohakutpu.backends.ktpu import KtpuBackEnd
from kohakutpu.conformance.xpu.load import load, module_of
from kohakutpu.conformance.xpu.replay import conform
from kohakutpu.xpu import KernelStream
from kohakutpu.xpu.launch import Runtime
from sim.kernels import run_rtl

CORPUS = Path(__file__).resolve().parents[1] / "xpu/corpus"
NAMES = ("machine_chain", "machine_softmax", "machine_gemm")


class Gates(KtpuBackEnd):
    """The machine's gates; `bend` changes what came back."""

    def __init__(self, bend=lambda request: None):
        super().__init__("mm_mesh")
        self.bend = bend

    def run(self, request) -> int:
        lowered = self.lower(request)
        cycles = lowered.run(lambda artifact, operands: run_rtl(artifact, lowered.machine, operands).run)
        self.bend(request)
        return cycles


def judged(folder, monkeypatch, backend, names):
    monkeypatch.setenv("XPU_RECORD", str(folder))
    data = module_of(CORPUS / "data.py")
    kernels = {kernel.name: kernel for kernel in load([str(CORPUS / "blocks_machine.py")])}
    runtime = Runtime()
    runtime.register(backend)
    for name in names:
        data.launch(kernels[name], "ragged", KernelStream(runtime), oracle=False)
    return [(one.kernel, one.backend, one.outcome) for one in conform(folder, kernels.values())]


def test_recordings_of_the_gates_replay(tmp_path, monkeypatch):
    found = judged(tmp_path, monkeypatch, Gates(), NAMES)
    assert found == [(name, "ktpu", "pass") for name in sorted(NAMES)]


def test_a_wrong_bit_of_the_gates_is_seen(tmp_path, monkeypatch):
    def bend(request):
        request.arguments[0].array.view("uint32")[7] ^= 1 << 8  # the last bit that E8M15 keeps in a float32

    assert judged(tmp_path, monkeypatch, Gates(bend), ["machine_chain"]) == [("machine_chain", "ktpu", "fail")]
