"""Numbers and tensors that are plain attributes of a module, and the modes of its parts. An export has them as they are when it is made."""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from .errors import InvalidArgument

# Parts of PyTorch have no types.
_tree: Any = _pytree
_NUMBERS = (bool, int, float)
_PLAIN = (*_NUMBERS, str)


def constants(module: nn.Module) -> Tuple[Any, ...]:
    """Returns the numbers and texts among a module's attributes, and whether each part is in training mode."""
    parts: Any = nn.Module.modules(module)
    return tuple(value for part in parts for value in vars(part).values() if type(value) in _PLAIN)


class Attributes:
    """The numbers and tensors among a module's attributes at some time."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._parts: List[Tuple[str, nn.Module, Dict[str, Any]]] = [(name, part, dict(vars(part))) for name, part in module.named_modules()]
        tensors = [value for _, _, held in self._parts for value in held.values() if isinstance(value, torch.Tensor)]
        self._versions = {id(tensor): tensor._version for tensor in tensors}

    def changed(self) -> List[Tuple[str, Any, Any]]:
        """Returns the names of those that have other values by now, with the old and the new ones."""
        found: List[Tuple[str, Any, Any]] = []
        for name, part, held in self._parts:
            for key, value in vars(part).items():
                before = held.get(key)
                if _is_plain(key, value) and not self._is_same(before, value):
                    found.append((f"{name}.{key}" if name else key, before, value))
        return found

    def _is_same(self, before: Any, value: Any) -> bool:
        if isinstance(value, torch.Tensor):
            return before is value and self._versions[id(value)] == value._version
        return type(before) is type(value) and bool(before == value or before != before)

    def check(self, run: Callable[[], Any]) -> List[str]:
        """Checks that a module that has changed some of them does not depend on them in its next run. Returns the names of the numbers that it
        changes again.

        Raises:
            forebay.InvalidArgument: It uses a tensor that its last run has left, and leaves another one.
        """
        if not self.changed():
            return []
        after = Attributes(self._module)
        using = _Using()
        with torch.no_grad(), using:
            run()
        for name, before, value in after.changed():
            if isinstance(before, torch.Tensor) and id(before) in using.used:
                raise InvalidArgument(
                    f"the module keeps a tensor in its attribute '{name}' from one run to the next, which its export does not; register it as a "
                    "buffer (register_buffer)"
                )
        return [name for name, before, value in after.changed() if type(before) in _NUMBERS and type(value) in _NUMBERS]

    def restore(self) -> None:
        """Makes all attributes as they were."""
        for _, part, held in self._parts:
            for key in set(vars(part)) - set(held):
                del part.__dict__[key]
            part.__dict__.update(held)


class Fixed:
    """What an export of a module holds as it is now: its parts and their modes, and the numbers and texts among their attributes."""

    def __init__(self, module: nn.Module, what: str) -> None:
        self._module, self._what = module, what
        self._parts: List[Tuple[str, nn.Module]] = list(module.named_modules())
        self._held: List[Tuple[str, nn.Module, str, Any]] = []
        for name, part in self._parts:
            for key, value in vars(part).items():
                if key != "training" and _is_fixed(value):
                    # Lists can change.
                    self._held.append((f"{name}.{key}" if name else key, part, key, copy.copy(value)))
        modes = [part.training for _, part in self._parts]
        # A module without a part in training mode is trained as a whole.
        self._trains = modes if any(modes) else [True] * len(modes)
        self._varying: Set[str] = set()

    def exempt_changes(self) -> None:
        """Exempts the attributes that have other values by now."""
        self._varying = {name for name, part, key, held in self._held if not _is_same(vars(part).get(key), held)}

    def refuse_changes(self) -> None:
        """Rejects a module that is not what its export is of.

        Raises:
            forebay.InvalidArgument: Something has changed; the message says what.
        """
        parts: Any = nn.Module.modules(self._module)
        if [id(part) for part in parts] != [id(part) for _, part in self._parts]:
            raise InvalidArgument(f"the {self._what} has other parts than when the trainer was made; {_ANOTHER}")
        for name, part, key, held in self._held:
            now = vars(part).get(key)
            if name not in self._varying and not _is_same(now, held):
                raise InvalidArgument(
                    f"the attribute '{name}' of the {self._what} is {now!r}, but its export has {held!r}, as when the trainer was made; {_ANOTHER}, or "
                    "pass what changes as an input"
                )
        modes = [part.training for _, part in self._parts]
        if not any(modes):
            return
        for (name, part), trains, now in zip(self._parts, self._trains, modes):
            if now != trains:
                words = ["evaluation", "training"]
                label = f"'{name}' ({type(part).__name__})" if name else f"the {self._what}"
                raise InvalidArgument(
                    f"{label} is in {words[now]} mode, but its export trains it in {words[trains]} mode, as when the trainer was made; {_ANOTHER}, or set "
                    "the mode back (.train(), .eval())"
                )


_ANOTHER = "make another trainer, which takes over the optimizer's state"


def _is_fixed(value: Any) -> bool:
    return type(value) in _PLAIN or type(value) in (list, tuple) and all(type(each) in _PLAIN for each in value)


def _is_same(now: Any, held: Any) -> bool:
    return type(now) is type(held) and bool(now == held or (now != now and held != held))


def warn_about(names: Sequence[str]) -> None:
    """Warns about numbers that a module changes whenever it runs."""
    if names:
        several = "s" if len(names) > 1 else ""
        warnings.warn(
            f"the module changes its attribute{several} {', '.join(names)} whenever it runs, but its export always has the same numbers; if results "
            "depend on them, register them as buffers (register_buffer)",
            stacklevel=5,
        )


def _is_plain(key: str, value: Any) -> bool:
    return key != "training" and (type(value) in _NUMBERS or isinstance(value, torch.Tensor))


class _Using(TorchFunctionMode):
    """Sees which tensors a module uses."""

    def __init__(self) -> None:
        super().__init__()
        self.used: Set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Optional[Dict[str, Any]] = None) -> Any:
        named = kwargs or {}
        self.used.update(id(value) for value in _tree.tree_leaves((args, named)) if isinstance(value, torch.Tensor))
        return func(*args, **named)


@contextlib.contextmanager
def kept(module: nn.Module) -> Iterator[Attributes]:
    """A context manager at whose end a module's attributes are as at its beginning."""
    attributes = Attributes(module)
    try:
        yield attributes
    finally:
        attributes.restore()
