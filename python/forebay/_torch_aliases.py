"""Tensors of a trace that share elements. A trace has values, not memory: a change in place of one of these tensors has to be repeated in the
others, which exporters do not do reliably."""

from __future__ import annotations

import weakref
from typing import Dict, List, Optional, Tuple

import torch

from ._torch_mathematics import with_gradient_of
from ._torch_states import FinalError, place_of, stand_for, traced, untraced


class Aliases:
    """The tensors of a trace, by what holds their elements, as long as they exist."""

    def __init__(self) -> None:
        self._known: Dict[int, Dict[int, "weakref.ref[torch.Tensor]"]] = {}
        #: Those whose gradients are no longer those of what they stand for.
        self._spoiled: Dict[int, "weakref.ref[torch.Tensor]"] = {}

    def check(self, tensor: torch.Tensor) -> None:
        """Checks a tensor that is used or returned.

        Raises:
            forebay.Error: It shares elements with a tensor of another type that was changed.
        """
        spoiled = self._spoiled.get(id(tensor))
        if spoiled is not None and spoiled() is tensor:
            raise FinalError(
                "the module uses a tensor after it has changed another one of another type that shares its elements (view(dtype)) in place; change a "
                "copy (.clone()) instead"
            )

    def use(self, tensor: torch.Tensor) -> None:
        """Notes an operand.

        Raises:
            forebay.Error: See :meth:`check`.
        """
        self.check(tensor)
        self.note(tensor)

    def note(self, tensor: torch.Tensor) -> None:
        """Notes a tensor that is traced."""
        place = place_of(tensor) if tensor.layout == torch.strided and tensor.numel() > 0 else None
        if not place or traced(tensor) is None:
            return
        known, number = self._known.setdefault(place, {}), id(tensor)
        if number not in known or known[number]() is None:
            known[number] = weakref.ref(tensor, lambda _: known.pop(number, None))

    def follow(self, target: torch.Tensor) -> None:
        """Makes the tensors that share elements with one that was changed in place stand for their new elements."""
        found = [each() for each in list(self._known.get(place_of(target) or 0, {}).values())]
        for alias in found:
            if alias is None or alias is target:
                continue
            shared = untraced(lambda: _shared(alias, target))
            if shared is None:
                continue
            if alias.dtype != target.dtype:
                self._spoiled[id(alias)] = weakref.ref(alias)
                continue
            own, theirs = shared
            keeps = alias.requires_grad and not (torch.is_grad_enabled() and _is_view_of_same(alias, target))
            before = traced_copy(alias) if keeps else None
            with torch.no_grad():
                new = target.reshape(-1)
                new = new if theirs is None else new.gather(0, theirs)
                whole = alias.reshape(-1).scatter(0, own, new) if own is not None else new
                stand_for(alias, whole.reshape(alias.shape))
            if before is not None:
                keep_gradient(alias, before)


def traced_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy of a tensor, which is traced: the exporter would take what a change in place makes of a value for that value."""
    with torch.no_grad():
        return tensor.clone()


def keep_gradient(tensor: torch.Tensor, before: torch.Tensor) -> None:
    """Gives a tensor that was changed in place without gradients the gradient of what it was before, as autograd does."""
    if traced(before) is None:
        return
    with torch.no_grad():
        stand_for(tensor, with_gradient_of(tensor, before))


def _is_view_of_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether autograd knows that a change of one tensor changes another one."""
    bases = [each._base if each._is_view() else each for each in (one, other)]
    return bases[0] is bases[1]


def _shared(alias: torch.Tensor, target: torch.Tensor) -> Optional[Tuple[Optional[torch.Tensor], Optional[torch.Tensor]]]:
    """Returns the elements of a tensor that another one shares and the places where that one has them, or ``None`` if there are none. In place
    of either, ``None`` stands for all of them in order."""

    def last(tensor: torch.Tensor) -> int:
        return int(tensor.storage_offset()) + sum((int(size) - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride()))

    if target.dtype != alias.dtype:
        return None, None
    first = min(alias.storage_offset(), target.storage_offset())
    numbers: torch.Tensor = torch.full((max(last(alias), last(target)) + 1 - first,), -1, dtype=torch.int64)
    places = numbers.as_strided(alias.shape, alias.stride(), alias.storage_offset() - first)
    places.copy_(torch.arange(alias.numel()).reshape(alias.shape))
    found = numbers.as_strided(target.shape, target.stride(), target.storage_offset() - first).reshape(-1)
    theirs = torch.nonzero(found >= 0).reshape(-1)
    if theirs.numel() == 0:
        return None
    own = found[theirs]
    is_all: List[bool] = [torch.equal(each, torch.arange(count)) for each, count in ((own, alias.numel()), (theirs, target.numel()))]
    return (None if is_all[0] else own, None if is_all[1] else theirs)
