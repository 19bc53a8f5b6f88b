"""What tests share: the models of the repository."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]

# A shell that starts tests in the background has Ctrl-C ignored, here and in every process that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _names_in_examples(doctest_namespace: Dict[str, Any]) -> None:
    doctest_namespace["digits"] = str(ROOT / "examples/digits/model.onnx")


@pytest.fixture
def digits() -> str:
    """A small network for pictures of digits; the batch size is open."""
    return str(ROOT / "examples/digits/model.onnx")


@pytest.fixture
def batch() -> Tuple[Any, Any]:
    """The first 50 digits."""
    data = np.load(ROOT / "examples/digits/digits.npz")
    return (data["x"][:50] / 16).astype(np.float32), data["y"][:50]


@pytest.fixture
def counts() -> Iterator[List[int]]:
    """A list to which another thread appends about once per millisecond while it can run."""
    counted: List[int] = []
    ended = threading.Event()

    def count() -> None:
        while not ended.is_set():
            counted.append(1)
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    yield counted
    ended.set()
    thread.join()
