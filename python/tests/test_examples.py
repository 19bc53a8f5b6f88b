"""The examples of all docstrings, and types."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import forebay

NAMES = ["errors", "_arrays", "_feed", "_indexing", "_losses", "_model", "_optimizers", "_options", "_plan", "_recipe", "_session", "_streams", "_tensor", "_torch_module"]
MODULES = ["", *("." + name for name in [*NAMES, "_trainer", "managed", "selftest", "torch"])]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str, digits: str) -> None:
    if "torch" in name:
        pytest.importorskip("torch", reason="there is no PyTorch")
    module = importlib.import_module("forebay" + name)
    failed, _ = doctest.testmod(module, extraglobs={"digits": digits})
    assert failed == 0


def test_everything_public_has_a_docstring() -> None:
    for name in forebay.__all__:
        assert (getattr(forebay, name).__doc__ or "").strip(), name


def test_types() -> None:
    pytest.importorskip("mypy", reason="there is no mypy")
    has_torch = importlib.util.find_spec("torch") is not None
    modules = [f"-mforebay{name}" for name in MODULES if "torch" not in name or has_torch]
    folder = Path(forebay.__file__).parent
    assert (folder / "py.typed").exists() and (folder / "_forebay.pyi").exists()
    checked = subprocess.run([sys.executable, "-m", "mypy", "--strict", *modules], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
