"""The event after which a layer can be replaced is recorded too early.

Published: https://github.com/Nerogar/OneTrainer/issues/1306. An event was recorded when a layer had run, and as soon as it
fired, the layer's memory was given to the next layer. But the event was recorded after the forward pass; the backward pass, which needs the
weights again, came after the event.
"""

import numpy as np

import forebay


def run(right: bool) -> np.ndarray:
    """Runs a layer forwards and backwards, then another in its memory; returns the first layer's gradient."""
    rng = np.random.default_rng(4)
    x, dy, first, second = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(4))
    with forebay.Context(record=True) as context:
        moves = forebay.Stream()
        weights = forebay.Tensor(first)  # The device memory that layers occupy in turn.
        coming = forebay.Tensor(second)  # Represents host memory.
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
