"""Processes of tests: one that goes on is killed where its test fails, and waited for where it does not."""

import sys
import time

import pytest

PRINTS = "import time; time.sleep(0.3); print('there')"


def test_a_test_that_fails_kills_what_it_has_started(started):
    begin = time.monotonic()
    with pytest.raises(AssertionError), started(["sleep", "600"]) as process:
        raise AssertionError
    assert process.returncode == -9 and time.monotonic() - begin < 60


def test_a_process_ends_by_itself(started, tmp_path):
    with open(tmp_path / "out", "w") as file, started([sys.executable, "-c", PRINTS], stdout=file) as process:
        pass
    assert process.returncode == 0 and (tmp_path / "out").read_text() == "there\n"
