"""Recurrent layers that ONNX has no operators for, computed step by step while a module is traced."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

import torch

from .errors import InvalidArgument

_untyped: Any = torch
_functional: Any = torch.nn.functional


def lstm(input: Any, *arguments: Any) -> Any:
    """Computes ``lstm``; with projections (``proj_size``), from other operations."""
    if isinstance(arguments[0], torch.Tensor):
        # Packed: data, sizes of batches, states, weights, has_biases, layers, dropout, training, both ways.
        if _has_projections(arguments[2], arguments[3]):
            raise InvalidArgument(
                "the module runs an nn.LSTM with proj_size on a packed sequence, which its export does not have; pass padded sequences, or leave out "
                "proj_size and add an nn.Linear"
            )
        return _untyped.lstm(input, *arguments)
    first, weights, has_biases, layers, rate, training, both_ways, batch_first = arguments
    if not _has_projections(weights, has_biases):
        return _untyped.lstm(input, *arguments)
    each = 5 if has_biases else 3
    x = input.transpose(0, 1) if batch_first else input
    outputs: List[Any] = []
    cells: List[Any] = []
    ways = 2 if both_ways else 1
    for layer in range(layers):
        results: List[Any] = []
        for way in range(ways):
            number = layer * ways + way
            own = weights[number * each : (number + 1) * each]
            result, output, cell = _direction(x, (first[0][number], first[1][number]), own, way == 1)
            results.append(result)
            outputs.append(output)
            cells.append(cell)
        x = torch.cat(results, -1) if both_ways else results[0]
        if rate > 0 and training and layer + 1 < layers:
            x = _functional.dropout(x, rate, True)
    return x.transpose(0, 1) if batch_first else x, torch.stack(outputs), torch.stack(cells)


def _has_projections(weights: Sequence[Any], has_biases: bool) -> bool:
    gates, hidden = (int(size) for size in weights[1].shape[-2:])
    return gates != 4 * hidden


def _direction(x: Any, first: Tuple[Any, Any], weights: Sequence[Any], is_backwards: bool) -> Tuple[Any, Any, Any]:
    """Returns the outputs [positions, samples, features] of one direction of a layer, and its last output and cells."""
    of_input, of_output, *biases, projection = weights
    output, cell = first
    # All positions at once.
    given = _functional.linear(x, of_input, biases[0] + biases[1] if biases else None)
    count = int(x.shape[0])
    found: List[Any] = [None] * count
    for position in reversed(range(count)) if is_backwards else range(count):
        entry, forget, new, exit = (given[position] + _functional.linear(output, of_output)).chunk(4, -1)
        cell = forget.sigmoid() * cell + entry.sigmoid() * new.tanh()
        output = _functional.linear(exit.sigmoid() * cell.tanh(), projection)
        found[position] = output
    return torch.stack(found), output, cell
