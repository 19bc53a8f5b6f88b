"""Activation offload reads before the copy has arrived.

Published: https://github.com/huggingface/trl/pull/7195. The class that offloads activations remembered, when it was made, which stream
computes. Later, the backward pass ran on another stream. The wait for the copy went to the stream of old, so the gradient was computed
from memory that the activation had not reached yet.
"""

import numpy as np

import forebay


def run(right: bool) -> np.ndarray:
    """A layer forwards and backwards; its activation is away in between. Its weight's gradient."""
    rng = np.random.default_rng(1)
    x, w, dy = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(3))
    with forebay.Context(record=True) as context:
        copies, backward = forebay.Stream(), forebay.Stream()
        computes = forebay.current_stream()  # What the class remembers.
        host = forebay.empty((64, 64))  # Stands for memory of the host.

        activation = (forebay.Tensor(x) @ forebay.Tensor(w)).relu()
        copies.wait_stream(computes)
        with forebay.stream(copies):
            host.copy_(activation)
        del activation  # Its memory is free as soon as the copy is over: that is seen to.

        backward.wait_stream(computes)
        with forebay.stream(backward):
            upstream = forebay.Tensor(dy)
            with forebay.stream(copies):
                returned = host.clone()
            if right:
                forebay.current_stream().wait_stream(copies)
            else:
                computes.wait_stream(copies)  # Nothing is computed there now.
            gradient = returned.T @ upstream
            result = gradient.numpy()
        context.check()
    return result
