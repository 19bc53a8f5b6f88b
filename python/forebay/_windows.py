"""Samples that are larger than what a model is trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence, Tuple


@dataclass(frozen=True)
class Windows:
    """How a model goes over samples that are larger than what it takes, as MONAI's ``sliding_window_inference`` does: in windows of one size,
    the last of which ends where the sample does; predictions are merged. Where a sample is smaller, zeros stand around it, and their
    predictions are left out.

    >>> import forebay
    >>> forebay.Windows([64, 64, 64], overlap=0.5, blend="gaussian").multiple
    1
    """

    #: Sizes of a window along the last axes of a sample; 0 for the sample's own size, where the model leaves that open.
    sizes: Sequence[int]
    #: The share of a window by which neighbours overlap at least: from 0 to below 1.
    overlap: float = 0.25
    #: How much places count where windows overlap: all alike (``"constant"``), or the more, the nearer they are to the middle of a window
    #: (``"gaussian"``).
    blend: str = "constant"
    #: What a sample's own size is rounded up to a multiple of, with zeros around the sample.
    multiple: int = 1
    #: Windows that go through the model at a time: as many samples as a part of a step has, where not given.
    batch_size: Optional[int] = None

    def _given(self) -> Tuple[Sequence[int], float, str, int, Optional[int]]:
        return [int(size) for size in self.sizes], float(self.overlap), self.blend, self.multiple, self.batch_size
