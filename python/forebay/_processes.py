"""Processes that compute together."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from types import TracebackType
from typing import Any, List, Optional, Type

from . import _forebay
from .errors import InvalidArgument


class Processes:
    """The processes of a run, connected by MPI. Each computes its share of every batch; results are bit-identical to those of one process.

    A launcher starts them (``mpirun -n 4 python train.py``); sessions and trainers take them as ``processes=...``. All processes make the
    same calls in the same order, with whole batches. This includes calls that write files: the first process writes while the others go
    on (:meth:`barrier` waits for it). A process that ends with an exception ends the others too, even while the first one writes; call
    :meth:`barrier` before. If a process leaves in another way (``sys.exit``, ``exit()``), a call in which another process waits for it
    fails within seconds.

    Args:
        communicator: An mpi4py communicator, all of whose processes take part. Without one, all processes that the launcher started
            take part, and mpi4py is not needed.
        timeout: The number of seconds after which a process that does not answer is given up on.
        end_timeout: The number of seconds for which a process that has reached the end of its program waits for the others to end too;
            then it ends with exit code 1, whereupon the launcher ends the others. By default, it waits for as long as they take.

    Raises:
        forebay.InvalidArgument: No MPI library was found, or MPI was initialized for calls from a single thread.
            ``FOREBAY_MPI_LIBRARY`` names another library.

    A program for any number of processes:

        import forebay, numpy as np

        processes = forebay.Processes()
        trainer = forebay.Trainer("model.onnx", batch_size=64, processes=processes)
        ...
        trainer.save("trained.onnx")
        if processes.rank == 0:
            print("done")
    """

    #: The group of all processes that the launcher started.
    _world: Optional[Processes] = None
    #: All groups, whose connections are closed before Python exits.
    _all: List[Processes] = []

    def __init__(self, communicator: Any = None, *, timeout: int = 600, end_timeout: Optional[int] = None) -> None:
        for name, seconds in (("timeout", timeout), ("end_timeout", 1 if end_timeout is None else end_timeout)):
            if isinstance(seconds, bool) or seconds < 1:
                raise InvalidArgument(f"{name} must be at least 1 second, but is {seconds}")
        library = os.environ.get("FOREBAY_MPI_LIBRARY") or None
        if communicator is not None:
            self._native = _forebay.Processes(_address_of(communicator), library, timeout, end_timeout)
        elif Processes._world is not None:
            self._native = Processes._world._native
        else:
            self._native = _forebay.Processes(None, library, timeout, end_timeout)
            Processes._world = self
        # The MPI handle belongs to the communicator, which must live as long as this object.
        self._communicator = communicator
        if not Processes._all:
            _end_together()
        Processes._all.append(self)

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return self._native.rank()

    @property
    def size(self) -> int:
        """The number of processes."""
        return self._native.size()

    @property
    def sent_bytes(self) -> int:
        """The number of bytes that this process has sent."""
        return self._native.exchanged()[0]

    @property
    def received_bytes(self) -> int:
        """The number of bytes that this process has received."""
        return self._native.exchanged()[1]

    @property
    def exchange_seconds(self) -> float:
        """The seconds during which at least one exchange was in progress."""
        return self._native.exchanged()[2]

    def barrier(self) -> None:
        """Waits until all processes have called it. Afterwards, each of them finds the files that the first one wrote before."""
        self._native.barrier()

    def __repr__(self) -> str:
        return f"<process {self.rank} of {self.size}>"

    @staticmethod
    def _native_of(given: Any) -> Optional[_forebay.Processes]:
        """Converts processes or a communicator for the native module."""
        if given is None or isinstance(given, Processes):
            return None if given is None else given._native
        return Processes(given)._native


def _address_of(communicator: Any) -> int:
    """Returns the address of the MPI handle of an mpi4py communicator."""
    try:
        from mpi4py import MPI  # pyright: ignore
    except ImportError as error:
        raise InvalidArgument(f"{communicator!r} is not a communicator of mpi4py, which is not installed") from error
    if not isinstance(communicator, MPI.Intracomm):  # pyright: ignore
        raise InvalidArgument(f"{communicator!r} is not a communicator of mpi4py, such as mpi4py.MPI.COMM_WORLD")
    return int(MPI._addressof(communicator))  # pyright: ignore


def _end_together() -> None:
    """Closes connections before Python exits, and ends all processes if this one ends with an exception. A process that leaves in another
    way (``sys.exit``, ``exit``, ``SystemExit``) only closes its connections, which ends those that wait for it with an error."""
    hook = sys.excepthook

    def end(kind: Type[BaseException], error: BaseException, traceback: Optional[TracebackType]) -> None:
        hook(kind, error, traceback)
        for stream in (sys.stdout, sys.stderr):
            # A stream can be missing or closed.
            with contextlib.suppress(Exception):
                stream.flush()
        for processes in Processes._all:
            if processes.size > 1:
                processes._native.abort()

    sys.excepthook = end
    atexit.register(_finish)


def _finish() -> None:
    """Waits for the other processes to end. If they take longer than they may, the exit code tells the launcher to end them."""
    failures = _forebay.Processes.finish([processes._native for processes in Processes._all])
    if failures:
        for stream in (sys.stdout, sys.stderr):
            # A stream can be missing or closed.
            with contextlib.suppress(Exception):
                if stream is sys.stderr:
                    stream.write("".join(f"error: {failure}\n" for failure in failures))
                stream.flush()
        # Exceptions do not change the exit code this late.
        os._exit(1)
