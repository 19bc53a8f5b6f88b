"""The published faults of offloading: the checker finds each of them, and nothing in what was repaired."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forebay

FOLDER = Path(__file__).resolve().parents[2] / "examples/offloading"
#: What each race is between.
PROGRAMS = {
    "read_before_arrival": ("copy_from", "Transpose"),
    "gradient_read_early": ("copy_from", "to_host"),
    "buffer_overwritten": ("copy_from", "copy_from"),
    "event_too_early": ("Transpose", "copy_from"),
    "freed_too_early": ("copy_from", "Tanh"),
}


@pytest.fixture(autouse=True)
def _path(monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_fault_is_found_and_the_repair_is_right(name: str) -> None:
    program = __import__(name)
    with pytest.raises(forebay.RaceError) as error:
        program.run(False)
    assert any(all(word in race for word in PROGRAMS[name]) for race in error.value.races), error.value.races
    first = program.run(True)
    assert np.isfinite(first).all() and np.array_equal(first, program.run(True))


def test_all_of_them_at_once() -> None:
    told = subprocess.run([sys.executable, str(FOLDER)], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert told.stdout.count("as published: 1 race") + told.stdout.count(" races, the first: ") >= len(PROGRAMS)
    assert told.stdout.count("as repaired: no race") == len(PROGRAMS)
