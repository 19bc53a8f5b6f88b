"""Activation offloading reads before the copy has arrived.

Published: https://github.com/huggingface/trl/pull/7195. When the class that offloads activations was created, it stored which stream
computes. Later, the backward pass ran on another stream. The wait for the copy went to the old stream, so the gradient was computed
from memory that the activation had not reached yet.
"""

import numpy as np

import forebay


def run(right: bool) -> np.ndarray:
    """Runs a layer forwards and backwards, with its activation on the host in between; returns the weight's gradient."""
    rng = np.random.default_rng(1)
    x, w, dy = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(3))
    with forebay.Context(record=True) as context:
        copies, backward = forebay.Stream(), forebay.Stream()
        computes = forebay.current_stream()  # The stream that the class stored.
        host = forebay.empty((64, 64))  # Represents host memory.

        activation = (forebay.Tensor(x) @ forebay.Tensor(w)).relu()
        copies.wait_stream(computes)
        with forebay.stream(copies):
            host.copy_(activation)
        del activation  # Forebay frees its memory only after the copy is complete.

        backward.wait_stream(computes)
        with forebay.stream(backward):
            upstream = forebay.Tensor(dy)
            with forebay.stream(copies):
                returned = host.clone()
            if right:
                forebay.current_stream().wait_stream(copies)
            else:
                computes.wait_stream(copies)  # No computation runs there now.
            gradient = returned.T @ upstream
            result = gradient.numpy()
        context.check()
    return result
