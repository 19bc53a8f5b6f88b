"""What the README and the guide say in Python, as it is pasted."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

ROOT = Path(__file__).resolve().parents[2]


def blocks(document: str) -> List[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("document", ["README.md", "docs/python.md", "docs/streams-and-events.md", "docs/managed-memory.md"])
def test_documents(document: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    found = blocks(document)
    assert found
    program = "\n".join(block for block in found if "torch" not in block or importlib.util.find_spec("torch") is not None)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "trained.onnx").exists() == ("trained.onnx" in program)
