"""An activation is freed while it is still being copied to the host.

Published: https://github.com/meta-pytorch/torchtune/issues/1867, fixed in pull request 1936. Gradients became NaN: the memory of an
activation was free as soon as the program dropped it, the next activation was written there, and the stream that copied the old one to
the host copied part of the new one. PyTorch knows only the stream on which a tensor was created, unless you call `record_stream`.

Forebay prevents this automatically, so the program has to turn that off (`extend_lifetimes=False`) to show the bug.
"""

import numpy as np

import forebay


def run(right: bool) -> np.ndarray:
    """Copies the activations of four layers to the host as they are computed; returns the copies."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((64, 64)).astype(np.float32)
    with forebay.Context(record=True, extend_lifetimes=right) as context:
        copies = forebay.Stream()
        activation = forebay.Tensor(x)
        away = []
        for _ in range(4):
            activation = activation.tanh()  # The previous one is dropped, and its memory is free.
            copies.wait_stream(forebay.current_stream())
            with forebay.stream(copies):
                away.append(activation.clone())
        with forebay.stream(copies):
            result = np.stack([one.numpy() for one in away])
        context.check()
    return result
