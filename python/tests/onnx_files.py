"""ONNX files, field by field, for tests without the package ``onnx``."""

from __future__ import annotations

from typing import Sequence, Union


def _number(value: int) -> bytes:
    parts = [value >> shift & 127 for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([part | 128 for part in parts[:-1]] + parts[-1:])


def field(number: int, value: Union[int, str, bytes]) -> bytes:
    """Returns a field of a message."""
    if isinstance(value, int):
        return _number(number << 3) + _number(value)
    content = value.encode() if isinstance(value, str) else value
    return _number(number << 3 | 2) + _number(len(content)) + content


def float_type(sizes: Sequence[str]) -> bytes:
    """Returns the type of a float32 tensor; a size is a number or a symbol."""
    shape = b"".join(field(1, field(1, int(size)) if size.isdigit() else field(2, size)) for size in sizes)
    return field(1, field(1, 1) + field(2, shape))


def sequence_type(element: bytes) -> bytes:
    """Returns the type of a sequence."""
    return field(4, field(1, element))


def node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], attributes: bytes = b"") -> bytes:
    """Returns a node of a graph."""
    names = b"".join(field(1, name) for name in inputs) + b"".join(field(2, name) for name in outputs)
    return field(1, names + field(4, op_type) + attributes)


def graph_input(name: str, kind: bytes) -> bytes:
    """Returns an input of a graph."""
    return field(11, field(1, name) + field(2, kind))


def graph_output(name: str, kind: bytes) -> bytes:
    """Returns an output of a graph."""
    return field(12, field(1, name) + field(2, kind))


def model_of(graph: bytes) -> bytes:
    """Returns a file with a graph."""
    return field(1, 8) + field(8, field(1, "") + field(2, 17)) + field(7, graph + field(2, "graph"))
