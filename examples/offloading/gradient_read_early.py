"""The optimizer on the host reads a gradient that is still being copied.

Published: https://github.com/facebookresearch/fairscale/pull/496 (and, on why, issue 636 there). Gradients were copied to the host without
waiting, so that the copies overlap the backward pass. The optimizer, a program on the host, then read them immediately. Results differed
from run to run, and no test reproduced the bug.
"""

import numpy as np

import forebay


def run(right: bool) -> np.ndarray:
    """Performs one step of gradient descent on the host; returns the new weights."""
    rng = np.random.default_rng(2)
    x, dy, w = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(3))
    with forebay.Context(record=True) as context:
        copies = forebay.Stream()
        host = forebay.empty((64, 64))  # Represents host memory.

        gradient = forebay.Tensor(x).T @ forebay.Tensor(dy)
        copies.wait_stream(forebay.current_stream())
        with forebay.stream(copies):
            host.copy_(gradient)
        arrived = copies.record_event()

        if right:
            arrived.synchronize()
        w -= 0.1 * host.numpy()
        context.check()
    return w
