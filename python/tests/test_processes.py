"""Several processes compute together, with the results of one. They are started by Open MPI's launcher."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

import pytest

import forebay

LAUNCHER = ["mpirun.openmpi", "--oversubscribe", "--quiet", "--mca", "plm", "isolated", "--mca", "btl", "self,vader,tcp", "-n", "2"]

#: Arguments: a folder, who finds the other processes, what is sharded, and whether the last process fails.
PROGRAM = """
import json, sys
import numpy as np, forebay

digits, folder, by, shard, fails = sys.argv[1:]
if by == "alone":
    processes = None
elif by == "launcher":
    processes = forebay.Processes()
else:
    from mpi4py import MPI
    processes = MPI.COMM_WORLD if by == "communicator" else forebay.Processes(MPI.COMM_WORLD)
random = np.random.default_rng(1)
batches = [(random.random((32, 1, 8, 8), np.float32), random.integers(0, 10, 32)) for _ in range(3)]
options = {"threads": 1, "processes": processes, "shard": shard or None}
trainer = forebay.Trainer(digits, optimizer=forebay.AdamW(1e-3), batch_size=32, average=0.9, **options)
history = trainer.fit(batches, epochs=2, validation=batches, progress=False, checkpoint=folder + "/checkpoint")
trainer.save(folder + "/trained.onnx")
trainer.save_average(folder + "/average.onnx")
if processes is not None and by != "communicator":
    processes.barrier()
elif processes is not None:
    processes.Barrier()
session = forebay.Session(folder + "/trained.onnx", threads=1, processes=processes)
logits = session.run(batches[0][0])["logits"]
if fails and isinstance(processes, forebay.Processes) and processes.rank == processes.size - 1:
    raise ValueError("a fault of the last process")
if by == "launcher":
    assert processes.size == 2 and processes.sent_bytes > 0 and processes.exchange_seconds > 0
if trainer.step_count != 6 or (fails and trainer.validate(batches)):
    raise SystemExit(3)
if not (processes and by != "communicator" and processes.rank):
    with open(folder + "/found.json", "w") as file:
        json.dump({"losses": history.losses, "validations": history.validations, "logits": logits.tolist()}, file)
"""


#: With an argument, process 1 runs it to leave while the other waits for it. Before that, both catch a SystemExit and go on.
LEAVING = """
import sys, threading, forebay

processes = forebay.Processes(timeout=100)
try:
    sys.exit(2)
except SystemExit:
    processes.barrier()
if processes.rank == 1 and len(sys.argv) > 1:
    print("it was asked to leave")
    exec(sys.argv[1])
if len(sys.argv) > 1:
    processes.barrier()
# This ends only the thread.
thread = threading.Thread(target=sys.exit, args=(1,))
thread.start()
thread.join()
"""


def run(folder: Path, digits: str, by: str, shard: str = "", fails: str = "") -> "subprocess.CompletedProcess[str]":
    return launch(folder, PROGRAM, [digits, str(folder), by, shard, fails], by != "alone")


def launch(folder: Path, source: str, arguments: List[str], several: bool = True) -> "subprocess.CompletedProcess[str]":
    folder.mkdir()
    program = folder / "program.py"
    program.write_text(source)
    command = [sys.executable, str(program), *arguments]
    environment = {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "MPI4PY_MPIABI": "openmpi",
    }
    launcher: List[str] = LAUNCHER if several else []
    return subprocess.run(
        launcher + command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def found(folder: Path) -> Dict[str, Any]:
    return {
        "numbers": json.loads((folder / "found.json").read_text()),
        **{name: (folder / name).read_bytes() for name in ("trained.onnx", "average.onnx")},
        "state": next((folder / "checkpoint").glob("*.safetensors")).read_bytes(),
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Any]:
    if shutil.which(LAUNCHER[0]) is None:
        pytest.skip("there is no Open MPI: openmpi-bin")
    folder = tmp_path_factory.mktemp("alone") / "run"
    digits = str(Path(__file__).resolve().parents[2] / "examples/digits/model.onnx")
    result = run(folder, digits, "alone")
    assert result.returncode == 0, result.stderr
    return found(folder)


@pytest.mark.parametrize(("by", "shard"), [("launcher", ""), ("launcher", "parameters"), ("mpi4py", "state"), ("communicator", "")])
def test_several_processes_leave_what_one_leaves(
    tmp_path: Path, digits: str, alone: Dict[str, Any], by: str, shard: str
) -> None:
    if by != "launcher":
        pytest.importorskip("mpi4py", reason="there is no mpi4py")
    result = run(tmp_path / "run", digits, by, shard)
    assert result.returncode == 0, result.stderr
    assert found(tmp_path / "run") == alone


def test_a_process_that_fails_ends_all(tmp_path: Path, digits: str, alone: Dict[str, Any]) -> None:
    result = run(tmp_path / "run", digits, "launcher", fails="fails")
    assert result.returncode != 0
    assert "ValueError: a fault of the last process" in result.stderr


@pytest.mark.skipif(shutil.which(LAUNCHER[0]) is None, reason="there is no Open MPI: openmpi-bin")
@pytest.mark.parametrize("leave", ["sys.exit('a bad argument')", "exit()"])
def test_a_process_that_leaves_ends_those_that_wait_for_it(tmp_path: Path, leave: str) -> None:
    begin = time.monotonic()
    result = launch(tmp_path / "left", LEAVING, [leave])
    assert result.returncode != 0
    assert "process 1 has ended, but this process still waits for message" in result.stderr
    assert "it was asked to leave" in result.stdout
    assert ("a bad argument" in result.stderr) == ("bad" in leave)
    assert time.monotonic() - begin < 60, "the other process waited for it"


@pytest.mark.skipif(shutil.which(LAUNCHER[0]) is None, reason="there is no Open MPI: openmpi-bin")
def test_a_process_waits_at_its_end_no_longer_than_it_should(tmp_path: Path) -> None:
    begin = time.monotonic()
    source = "import time, forebay\nif forebay.Processes(end_timeout=2).rank == 0:\n    time.sleep(200)"
    result = launch(tmp_path / "late", source, [])
    assert result.returncode != 0
    assert "error: process 1 of 2: this process has ended, but process 0 has not after 2 s more" in result.stderr
    assert time.monotonic() - begin < 100, "the launcher ends the other process"


@pytest.mark.skipif(shutil.which(LAUNCHER[0]) is None, reason="there is no Open MPI: openmpi-bin")
def test_processes_that_leave_together_end_well(tmp_path: Path) -> None:
    result = launch(tmp_path / "none", LEAVING, [])
    assert result.returncode == 0, result.stderr


def test_what_is_no_communicator_is_refused(digits: str) -> None:
    with pytest.raises(forebay.InvalidArgument, match="not a communicator of mpi4py"):
        forebay.Session(digits, processes=4)
    with pytest.raises(forebay.InvalidArgument, match="at least 1"):
        forebay.Processes(timeout=0)
    with pytest.raises(forebay.InvalidArgument, match="end_timeout must be at least 1"):
        forebay.Processes(end_timeout=0)
    with pytest.raises(forebay.InvalidArgument, match="kind of shard 'weights'"):
        forebay.Trainer(digits, batch_size=4, shard="weights")
