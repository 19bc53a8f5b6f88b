"""A buffer is refilled before its old contents have been copied out.

Published: https://github.com/deepspeedai/DeepSpeed/issues/5545, fixed in pull request 5606. Gradients are collected in a buffer, which
a second stream copies out while the backward pass continues. The second stream waited for the first, but the first did not wait for the
second before it reused the buffer. The results were correct as long as computing took longer than sending.
"""

import numpy as np

import forebay


def run(right: bool) -> np.ndarray:
    """The gradients of three layers, sent through one buffer."""
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal((64, 64)).astype(np.float32) for _ in range(3)]
    with forebay.Context(record=True) as context:
        sends = forebay.Stream()
        buffer = forebay.empty((64, 64))
        sent = []

        for x in inputs:
            gradient = forebay.Tensor(x).tanh()
            if right:
                forebay.current_stream().wait_stream(sends)
            buffer.copy_(gradient)
            sends.wait_stream(forebay.current_stream())
            with forebay.stream(sends):
                sent.append(buffer.clone())
        with forebay.stream(sends):
            result = np.stack([one.numpy() for one in sent])
        context.check()
    return result
