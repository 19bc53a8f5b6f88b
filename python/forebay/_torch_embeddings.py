"""Embedding rows that PyTorch does not train."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, List

import torch
from torch import nn

_untyped: Any = torch


@contextlib.contextmanager
def padding_rows_stay(module: nn.Module, others_change_them: bool = False) -> Iterator[None]:
    """While a module is exported, gives the ``padding_idx`` row of its embeddings no gradient, as in PyTorch. ONNX cannot express this, so
    lookups of the row are multiplied by 0 if it is 0, and are otherwise a constant, unless others can change the row later."""
    patched: List[nn.Embedding] = []
    try:
        for each in module.modules():
            if not isinstance(each, nn.Embedding) or each.padding_idx is None or "forward" in each.__dict__:
                continue
            with torch.no_grad():
                row = each.weight[each.padding_idx].detach().clone()
            is_zero = not bool(row.any())
            if is_zero or not others_change_them:
                each.__dict__["forward"] = _forward(each, each.padding_idx, row, is_zero)
                patched.append(each)
        yield
    finally:
        for each in patched:
            del each.__dict__["forward"]


def _forward(
    embedding: nn.Embedding, padding: int, row: torch.Tensor, is_zero: bool
) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(indices: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _untyped.nn.functional.embedding(indices, embedding.weight)
        counts = (indices != padding).unsqueeze(-1)
        return found * counts.to(found.dtype) if is_zero else torch.where(counts, found, row)

    return forward
