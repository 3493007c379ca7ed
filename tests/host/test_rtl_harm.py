"""Gates in a simulator behind a harmed connection: random accesses, none lost, none done twice."""

import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from kohakutpu.host.transports.socket_transport import SocketTransport
from kohakutpu.machine import load

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from chaos import Harm, Proxy  # noqa: E402
from transport_traffic import Traffic  # noqa: E402

MACHINE = load("mm_mesh")
MILLION = 1_000_000
HARM = Harm(short=0.01, delay=0.001, drop=0.0005)  # as `test_transport_million` does it to the other transports


@contextmanager
def harmed_gates(folder, harm, *, seed=1, **options):
    """(transport, harm done so far, a function that ends the session and gives (words, digest) of what reached the
    gates)."""
    from sim.machine import build, simulate

    address = folder / "socket"
    built = build(MACHINE, simulator="verilator")
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(
            simulate, built, "harmed_gates:answer", search=[HERE], description=MACHINE, address=address, **options
        )
        while not address.exists():
            assert not job.done(), job.exception()
            time.sleep(0.01)
        with Proxy(address, Harm(), seed) as proxy, SocketTransport(proxy.address, MACHINE) as transport:
            proxy.harm = harm

            def arrived():
                proxy.harm = Harm()
                transport.close()
                return job.result(60)

            yield transport, proxy.done, arrived


def run(folder, accesses, harm, **options):
    """The traffic and the harm of one run that was found right."""
    with harmed_gates(folder, harm, **options) as (transport, done, arrived):
        traffic = Traffic(transport, MACHINE, seed=12, longest=16)
        traffic.run(accesses)
        assert arrived() == (traffic.ledger.words, traffic.ledger.digest.hexdigest()), "a word was lost or done twice"
        assert transport.reconnected >= done["drop"] // 2
    return traffic, done


def test_random_accesses_under_harm(tmp_path):
    traffic, done = run(tmp_path, 3000, Harm(short=0.05, delay=0.01, drop=0.01))
    assert traffic.accesses >= 3000 and min(done.values()) > 20, "hardly anything was harmed: this shows nothing"


def test_a_word_that_is_done_twice_is_noticed(tmp_path):
    with pytest.raises(AssertionError, match="a word was lost or done twice"):
        run(tmp_path, 1000, Harm(), stutter=40)


@pytest.mark.slow
def test_a_million_accesses_under_harm(tmp_path, capsys):
    start = time.monotonic()
    traffic, done = run(tmp_path, MILLION, HARM)
    assert min(done.values()) > 100, "hardly anything was harmed: this shows nothing"
    used = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    with capsys.disabled():
        print(f"\nrtl: {traffic.accesses:,} accesses, {traffic.words:,} words, {traffic.requests:,} requests, "
              f"0 lost or done twice, {time.monotonic() - start:.0f} s, {used:.0f} s of processor time; {done}")  # fmt: skip
