"""Exceptions. Each says what is wrong, with the numbers, and how to fix it; all of them derive from :class:`Error`.

>>> import forebay
>>> issubclass(forebay.OutOfBudget, forebay.Error), issubclass(forebay.OutOfBudget, MemoryError)
(True, True)
"""

from __future__ import annotations

import functools
import os
from typing import Any, List, Optional, Sequence, Type, cast

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
    """A file cannot be read or written. If the system says why, the error is also an instance of the built-in class for that reason, such
    as ``FileNotFoundError``.

    >>> import forebay
    >>> try:
    ...     forebay.Session("none.onnx")
    ... except FileNotFoundError as error:
    ...     print(isinstance(error, forebay.FileError), error.filename, error.strerror)
    True none.onnx No such file or directory
    """

    #: The system's error number (:mod:`errno`); ``None`` if the system did not report the error.
    errno: Optional[int]
    #: The system's message for this number; without a number, the reason.
    strerror: str
    #: The file or folder.
    filename: str

    def __new__(cls, message: str, errno: Optional[int] = None, filename: str = "") -> FileError:
        return super().__new__(_file_error(errno) if cls is FileError else cls, message)

    def __init__(self, message: str, errno: Optional[int] = None, filename: str = "") -> None:
        super().__init__(message)
        self.errno, self.filename = errno, filename
        self.strerror = message if errno is None else os.strerror(errno)

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> Any:
        return FileError, (str(self), self.errno, self.filename)


@functools.lru_cache(maxsize=None)
def _file_error(errno: Optional[int]) -> Type[FileError]:
    """Returns the class of file errors with an error number: a subclass of the built-in one, if there is one."""
    builtin = OSError if errno is None else type(OSError(errno, ""))
    if builtin is OSError:
        return FileError
    made = type("FileError", (FileError, builtin), {"__module__": __name__, "__doc__": FileError.__doc__})
    return cast("Type[FileError]", made)


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
