"""Steps of several processes, simulated together."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, List

from . import _forebay


@dataclass(frozen=True)
class SimulatedRank:
    """One process in a simulated step."""

    #: The duration of its step in seconds.
    seconds: float
    #: The part of :attr:`seconds` in which kernels run.
    busy_seconds: float
    #: The part of :attr:`seconds` in which no kernel runs and data is exchanged.
    exchange_seconds: float
    #: The part of :attr:`seconds` in which no kernel runs and exchanges wait for processes that have not begun them.
    waiting_seconds: float
    #: How many times as long as planned its kernels take.
    slowness: float
    #: The number of bytes that it sends to other processes.
    sent_bytes: int
    #: The device memory that its plan takes, in bytes.
    device_memory: int
    #: The host memory that its plan takes, in bytes.
    host_memory: int


class SimulatedStep:
    """A step of several processes on one simulated clock, returned by :meth:`forebay.Plan.simulate`: an exchange makes progress once all
    processes have begun it."""

    def __init__(self, native: _forebay.SimulatedStep, alone_seconds: float) -> None:
        self._native = native
        self._alone_seconds = alone_seconds
        self._ranks = [SimulatedRank(*times, slowness, *sizes) for times, slowness, sizes in native.ranks()]

    @property
    def seconds(self) -> float:
        """The seconds of the step: those of the process that takes longest."""
        return self._native.seconds()

    @property
    def ranks(self) -> List[SimulatedRank]:
        """What each process does, by rank."""
        return list(self._ranks)

    @property
    def slowest(self) -> int:
        """The rank of the process that is at work longest."""
        return self._native.slowest()

    @property
    def speedup(self) -> float:
        """How many times as fast the step is as that of one process."""
        return self._alone_seconds / self.seconds

    @property
    def efficiency(self) -> float:
        """:attr:`speedup` divided by the number of processes."""
        return self.speedup / len(self._ranks)

    def trace(self) -> Dict[str, Any]:
        """Returns when every command runs, in the format of Perfetto and chrome://tracing (after ``json.dump``). Processes that do the same
        at the same times are shown as one."""
        trace: Dict[str, Any] = json.loads(self._native.trace())
        return trace

    def __repr__(self) -> str:
        faster = f"{self.speedup:.2f} times as fast as one process"
        return f"<SimulatedStep: {self.seconds:.3g} s on {len(self._ranks)} processes, {faster}>"


__all__ = ["SimulatedRank", "SimulatedStep"]
