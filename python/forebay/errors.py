"""Exceptions. Each says what is wrong, with the numbers, and how to fix it; all of them derive from :class:`Error`.

>>> import forebay
>>> issubclass(forebay.OutOfBudget, forebay.Error), issubclass(forebay.OutOfBudget, MemoryError)
(True, True)
"""

from __future__ import annotations

from typing import List, Optional, Sequence

__all__ = [
    "DeviceLost",
    "Error",
    "FileError",
    "InvalidArgument",
    "NotFinite",
    "OutOfBudget",
    "RaceError",
    "UnsupportedOperator",
]


class Error(Exception):
    """The base class of all errors. The message contains names, numbers and a way to fix the problem."""


class InvalidArgument(Error, ValueError):
    """An option, an input or a label is not valid for the model."""


class FileError(Error, OSError):
    """A file cannot be read or written."""


class OutOfBudget(Error, MemoryError):
    """There is no plan within a memory budget, or the memory that it allows is not available.

    >>> import forebay
    >>> try:
    ...     forebay.Session(digits, batch_size=8, simulate_device="4KiB")
    ... except forebay.OutOfBudget as error:
    ...     print(error.budget, error.least is not None and error.least > 4096)
    device_memory True
    """

    #: The budget: ``"device_memory"``, ``"host_memory"``, ``"memory_limit"`` (of the process), or ``"device"`` if the device itself
    #: cannot provide the memory.
    budget: str
    #: The smallest budget that has a plan, in bytes; ``None`` if unknown.
    least: Optional[int]

    def __init__(self, message: str, budget: str = "device", least: Optional[int] = None) -> None:
        super().__init__(message)
        self.budget = budget
        self.least = least


class UnsupportedOperator(Error, NotImplementedError):
    """The model uses operators that Forebay does not support, or trains through operators that have no gradient."""

    #: The operators, as ``Name`` or ``domain.Name``.
    operators: List[str]

    def __init__(self, message: str, operators: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.operators = list(operators)


class RaceError(Error):
    """The checker found a race: in the operations that a context recorded (:meth:`forebay.Context.check`), listed in ``races``; or in a
    plan (``check=True``), which is a bug in Forebay, found before anything ran."""

    #: A sentence for each race: both operations, their streams, the bytes, and what is missing.
    races: List[str]

    def __init__(self, message: str, races: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.races = list(races)


class DeviceLost(Error):
    """The device failed and can no longer be used. A new session or trainer can continue from the latest checkpoint."""


class NotFinite(Error, ArithmeticError):
    """The loss is not finite. Parameters and state are unchanged from before the step."""
