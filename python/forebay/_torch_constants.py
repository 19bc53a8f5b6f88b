"""Tensors that a module uses and that are neither its inputs nor among its saved parameters and buffers, such as those of another module. An
export has their values."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch import nn

from ._torch_states import version
from .errors import InvalidArgument

_Reference = Callable[[], Optional[torch.Tensor]]


class Constants:
    """These tensors, as they are when the module has been exported."""

    def __init__(self) -> None:
        #: Each with the place where the module uses it, by its identity.
        self._used: Dict[int, Tuple[_Reference, str]] = {}
        self._versions: List[Tuple[_Reference, Any, str]] = []
        #: What must still be the same object.
        self._attributes: List[Tuple[str, Dict[str, Any], str, _Reference]] = []

    def note(self, tensor: torch.Tensor, where: Callable[[], str]) -> None:
        """Notes a tensor and where it is used."""
        known = self._used.get(id(tensor))
        if known is None or known[0]() is not tensor:
            self._used[id(tensor)] = weakref.ref(tensor), where()

    def settle(self, *modules: nn.Module) -> None:
        """Takes the values that the export has. Tensors that the module made while it was exported are gone by then."""
        self._versions = [(found, version(tensor), where) for found, where in self._used.values() for tensor in _alive(found)]
        self._attributes = []
        for module in modules:
            untyped: Any = module
            for name, part in untyped.named_modules():
                for names in (vars(part), part._buffers, part._parameters):
                    for key, value in names.items():
                        known = self._used.get(id(value))
                        if known is not None and known[0]() is value:
                            self._attributes.append((f"{name}.{key}" if name else key, names, key, known[0]))

    def changed(self) -> Optional[str]:
        """Returns what has changed since then, in words, or ``None``."""
        for name, names, key, found in self._attributes:
            if names.get(key) is not found():
                return f"the tensor '{name}'"
        for found, before, where in self._versions:
            for tensor in _alive(found):
                if version(tensor) != before:
                    return f"a tensor that the module uses {where}"
        return None

    def refuse_changes(self) -> None:
        """Rejects a module whose export has other values.

        Raises:
            forebay.InvalidArgument: A tensor has changed.
        """
        changed = self.changed()
        if changed is not None:
            raise InvalidArgument(
                f"{changed} has changed since the trainer was made, but the export has its former values; pass it as an input, make another trainer "
                "after such a change, or compile the module (forebay.torch.compile), which is then exported again"
            )


def _alive(found: _Reference) -> Iterator[torch.Tensor]:
    tensor = found()
    if tensor is not None:
        yield tensor
