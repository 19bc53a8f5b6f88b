"""The event after which a layer may leave is recorded too early.

Published: https://github.com/Nerogar/OneTrainer/issues/1306. When a layer had run, an event was recorded, and the layer's memory was given
to the next layer as soon as it fired. But the event stood behind the forward pass; the backward pass, which needs the weights once more,
came after it.
"""

import numpy as np

import forebay


def run(right: bool) -> np.ndarray:
    """A layer forwards and backwards, then another in its memory. The first layer's gradient."""
    rng = np.random.default_rng(4)
    x, dy, first, second = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(4))
    with forebay.Context(record=True) as context:
        moves = forebay.Stream()
        weights = forebay.Tensor(first)  # The place on the device that layers take in turn.
        coming = forebay.Tensor(second)  # Stands for memory of the host.
        upstream = forebay.Tensor(dy)
        done = forebay.Event()

        output = forebay.Tensor(x) @ weights
        if not right:
            done.record()
        gradient = (upstream * output.sigmoid()) @ weights.T
        if right:
            done.record()

        moves.wait_event(done)
        with forebay.stream(moves):
            weights.copy_(coming)
        result = gradient.numpy()
        context.check()
    return result
