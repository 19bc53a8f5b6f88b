"""The notebooks run: as programs, and by Jupyter where it is there."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells and all(cell["outputs"] == [] for cell in cells), "outputs are not committed"
    program = "\n".join("".join(cell["source"]) for cell in cells)
    if "import torch" in program:
        pytest.importorskip("torch", reason="there is no PyTorch")
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_in_jupyter(path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="there is no Jupyter")
    nbformat = pytest.importorskip("nbformat", reason="there is no Jupyter")
    pytest.importorskip("ipykernel", reason="there is no Jupyter")
    notebook = nbformat.read(path, as_version=4)
    if any("import torch" in cell.source for cell in notebook.cells) and importlib.util.find_spec("torch") is None:
        pytest.skip("there is no PyTorch")
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(path.parent)}}).execute()
