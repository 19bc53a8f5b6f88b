"""Checks of arguments, with messages that name the argument and say what to pass."""

from __future__ import annotations

import operator
from dataclasses import asdict, fields
from typing import Any, Container, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from .errors import InvalidArgument


def whole(name: str, value: Any, least: int = 0) -> int:
    """Returns a whole number of at least ``least`` and less than 2**64."""
    number = integer(name, value)
    if number < least:
        raise InvalidArgument(f"{name} must be at least {least}, but is {number}")
    if number >= 1 << 64:
        raise InvalidArgument(f"{name} must be less than 2**64, but is {number}")
    return number


def integer(name: str, value: Any) -> int:
    """Returns a whole number of any size."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, but is {value!r}") from None


def number(name: str, value: Any) -> float:
    """Returns a number."""
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{name} must be a number, but is {value!r}")


def flag(name: str, value: Any) -> bool:
    """Returns a truth value."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, but is {value!r}")
    return bool(value)


def text(name: str, value: Any) -> str:
    """Returns a string."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, but is {value!r}")
    return value


def texts(name: str, value: Union[str, Sequence[str]]) -> List[str]:
    """Returns strings; a single one stands for a list of one."""
    return [value] if isinstance(value, str) else [text(name, one) for one in value]


def instance(name: str, value: Any, kinds: Tuple[type, ...], example: str) -> None:
    """Rejects a value that is not an instance of one of these classes. ``example`` says what to pass."""
    if isinstance(value, kinds):
        return
    found = f"the class {value.__name__} itself" if isinstance(value, type) else repr(value)
    raise TypeError(f"{name} must be {example}, but is {found}")


_CHECKS: Dict[str, Any] = {"int": whole, "float": number, "bool": flag, "str": text}


def checked(options: Any, signed: Container[str] = ()) -> Dict[str, Any]:
    """Returns the fields of a dataclass of options by name. Their types are checked; whole numbers are at least 0, except ``signed`` ones."""
    found = asdict(options)
    for field in fields(options):
        kind, value = str(field.type), found[field.name]
        if kind.startswith("Optional["):
            if value is None:
                continue
            kind = kind[len("Optional[") : -1]
        check = integer if field.name in signed else _CHECKS.get(kind)
        if check is not None:
            found[field.name] = check(f"{field.name} of {type(options).__name__}", value)
    return found


def optional(check: Any, name: str, value: Optional[Any]) -> Any:
    """Returns ``None``, or the checked value."""
    return None if value is None else check(name, value)
