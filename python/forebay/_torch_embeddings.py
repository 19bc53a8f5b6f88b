"""Embedding rows that PyTorch does not train."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List, Optional, Tuple

import torch
from torch import nn

_functional: Any = torch.nn.functional


@contextlib.contextmanager
def padding_rows_stay(module: nn.Module, others_change_them: bool = False) -> Iterator[None]:
    """While a module is exported, gives the ``padding_idx`` row of its embeddings no gradient, as in PyTorch. ONNX cannot express this, so
    lookups of the row are multiplied by 0 if it is 0, and are otherwise a constant, unless others can change the row later. What an
    embedding of a class of its own does with what it looked up stays as it is."""
    rows: List[Tuple[nn.Embedding, torch.Tensor, bool]] = []
    for each in module.modules():
        if isinstance(each, nn.Embedding) and each.padding_idx is not None:
            with torch.no_grad():
                row = each.weight[each.padding_idx].detach().clone()
            is_zero = not bool(row.any())
            if is_zero or not others_change_them:
                rows.append((each, row, is_zero))
    original = _functional.embedding

    def embedding(
        indices: Any, weight: torch.Tensor, padding_idx: Optional[int] = None, *others: Any, **named: Any
    ) -> torch.Tensor:
        found: torch.Tensor = original(indices, weight, padding_idx, *others, **named)
        for each, row, is_zero in rows:
            if each.weight is weight and each.padding_idx == padding_idx:
                counts = (indices != padding_idx).unsqueeze(-1)
                return found * counts.to(found.dtype) if is_zero else torch.where(counts, found, row)
        return found

    try:
        if rows:
            _functional.embedding = embedding
        yield
    finally:
        _functional.embedding = original
