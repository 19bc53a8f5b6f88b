"""Sliding windows for samples larger than what a model is trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence, Tuple

from ._checks import instance, number, optional, text, whole


@dataclass(frozen=True)
class Windows:
    """How to run a model on samples larger than its input, like MONAI's ``sliding_window_inference``: in windows of one size, the last of
    which ends at the end of the sample, with merged predictions. Smaller samples are padded with zeros, whose predictions are
    discarded.

    >>> import forebay
    >>> forebay.Windows([64, 64, 64], overlap=0.5, blend="gaussian").multiple
    1
    """

    #: The sizes of a window along the last axes of a sample; 0 for the sample's own size, if the model leaves it open.
    sizes: Sequence[int]
    #: The minimum overlap of neighboring windows as a fraction of a window: at least 0 and below 1.
    overlap: float = 0.25
    #: How positions are weighted where windows overlap: equally (``"constant"``), or more towards the middle of a window
    #: (``"gaussian"``).
    blend: str = "constant"
    #: The number to whose multiples a sample's own size is rounded up, by padding the sample with zeros.
    multiple: int = 1
    #: The number of windows per batch; by default, the number of samples in a part of a step.
    batch_size: Optional[int] = None


def windows_given(windows: Any) -> Tuple[Sequence[int], float, str, int, Optional[int]]:
    """Converts windows for the native module."""
    instance("windows", windows, (Windows,), "a forebay.Windows, such as forebay.Windows([64, 64])")
    return (
        [whole("a size of Windows", size) for size in windows.sizes],
        number("overlap of Windows", windows.overlap),
        text("blend of Windows", windows.blend),
        whole("multiple of Windows", windows.multiple),
        optional(whole, "batch_size of Windows", windows.batch_size),
    )
