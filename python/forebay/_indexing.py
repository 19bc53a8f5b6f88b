"""Interpretation of indices for a given shape."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, List, Sequence, Tuple

from .errors import InvalidArgument


@dataclass(frozen=True)
class Part:
    """A part of a tensor as arguments of ONNX's Slice, and the shape of the result."""

    starts: Sequence[int]
    ends: Sequence[int]
    axes: Sequence[int]
    steps: Sequence[int]
    shape: Tuple[int, ...]


def keys_of(key: Any) -> Tuple[Any, ...]:
    """Returns the components of an index, one per dimension."""
    return key if isinstance(key, tuple) else (key,)  # pyright: ignore[reportUnknownVariableType]


def part(shape: Tuple[int, ...], key: Any) -> Part:
    """Returns the part of a shape that numbers, slices, ``...`` and ``None`` select, as in NumPy.

    >>> part((4, 5), (1, slice(None, None, 2), None)).shape
    (3, 1)
    """
    keys = list(keys_of(key))
    given = sum(1 for one in keys if one is not None and one is not Ellipsis)
    if given > len(shape):
        raise IndexError(f"{given} indices are too many for {len(shape)} dimensions")
    if sum(1 for one in keys if one is Ellipsis) > 1:
        raise IndexError("an index can have at most one ...")
    rest = len(shape) - given
    if not any(one is Ellipsis for one in keys):
        keys.append(Ellipsis)
    starts: List[int] = []
    ends: List[int] = []
    axes: List[int] = []
    steps: List[int] = []
    sizes: List[int] = []
    axis = 0
    for one in keys:
        if one is None:
            sizes.append(1)
            continue
        if one is Ellipsis:
            sizes.extend(shape[axis : axis + rest])
            axis += rest
            continue
        size = shape[axis]
        if isinstance(one, slice):
            start, stop, step = one.indices(size)
            count = len(range(start, stop, step))
            sizes.append(count)
            if count == 0:
                start, stop, step = 0, 0, 1
            # In ONNX, an end of -1 means the last element; the position before the first one is further left.
            stop = stop if stop >= 0 else -size - 1
        else:
            try:
                if isinstance(one, bool):  # In NumPy this is a mask, not the number 0 or 1.
                    raise TypeError
                start = operator.index(one)
            except TypeError:
                raise InvalidArgument(f"an index consists of numbers, slices, ... and None, not {type(one).__name__}") from None
            if not -size <= start < size:
                raise IndexError(f"{start} is out of range for axis {axis} of {size}")
            start = start % size
            stop, step = start + 1, 1
        if (start, stop, step) != (0, size, 1):
            starts.append(start)
            ends.append(stop)
            axes.append(axis)
            steps.append(step)
        axis += 1
    return Part(starts, ends, axes, steps, tuple(sizes))
