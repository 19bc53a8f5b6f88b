"""Streams, events and contexts: order, time, races."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

import forebay


def product(seed: int = 1) -> Any:
    a = np.random.default_rng(seed).standard_normal((20, 20)).astype(np.float32)
    return a, (a @ a).sum()


def races(context: forebay.Context) -> list[str]:
    try:
        context.check()
    except forebay.RaceError as error:
        assert str(error) == "\n".join(error.races)
        return error.races
    return []


def test_a_sum_on_another_stream_that_nothing_orders_is_a_race() -> None:
    a, _ = product()
    with forebay.Context(record=True) as context:
        s = forebay.Stream()
        A = forebay.Tensor(a)
        B = A @ A
        with forebay.StreamCtx(s):
            B.sum()
        found = races(context)
    assert len(found) == 1 and "MatMul" in found[0] and "ReduceSum" in found[0]


def test_wait_stream_orders_it() -> None:
    a, total = product()
    with forebay.Context(record=True) as context:
        s = forebay.Stream()
        A = forebay.Tensor(a)
        B = A @ A
        s.wait_stream(forebay.current_stream())
        with forebay.stream(s):
            C = B.sum()
            assert C.item() == pytest.approx(total, rel=1e-4)
        assert races(context) == []


def test_events_order_as_far_as_they_are_waited_for() -> None:
    a, total = product()
    for right in (False, True):
        with forebay.Context(record=True) as context:
            s = forebay.Stream()
            ev1, ev2 = forebay.Event(), forebay.Event()
            A = forebay.Tensor(a)
            B = A @ A
            ev1.record()
            with forebay.StreamCtx(s):
                ev1.wait()
                C = B.sum()
                ev2.record()
            (ev2 if right else ev1).wait()  # The guide to MindSpore's streams waits for ev1, and so not for the sum.
            D = C + 1
            assert (races(context) == []) == right
            if right:
                assert D.item() == pytest.approx(total + 1, rel=1e-4)


def test_memory_that_another_stream_reads_is_not_given_away() -> None:
    x = np.random.default_rng(3).standard_normal((4, 8, 16, 16)).astype(np.float32)
    for extended in (True, False):
        with forebay.Context(record=True, extend_lifetimes=extended) as context:
            s1 = forebay.Stream()
            add_s0 = forebay.Tensor(x) + 1
            mess_input = forebay.Tensor(x)
            s1.wait_stream(forebay.default_stream())
            with forebay.StreamCtx(s1):
                add_s1 = add_s0 + 1
                ev = s1.record_event()
            del add_s0
            mess_output = mess_input + 1
            ev.wait()
            result = (add_s1 + 1).numpy()
            assert (races(context) == []) == extended
            if extended:
                assert np.array_equal(result, (x + 1) + 1 + 1)
            del mess_output


def test_current_streams_belong_to_threads_and_contexts() -> None:
    with forebay.Context() as context, forebay.Context() as other:
        s, t = forebay.Stream(context), forebay.Stream(context, priority=-1)
        assert t.priority == -1 and s != t and len({s, t, s}) == 2
        assert forebay.default_stream(context) == context.default_stream() == context.current_stream()
        assert forebay.current_context() is other
        with forebay.stream(s):
            assert forebay.current_context() is context and forebay.current_stream() == s
            with forebay.StreamCtx(None), t, forebay.StreamCtx(s):
                assert forebay.current_stream() == s
            assert forebay.current_stream() == s and other.current_stream() == other.default_stream()
            seen = []
            thread = threading.Thread(target=lambda: seen.append(context.current_stream()))
            thread.start()
            thread.join()
            assert seen == [context.default_stream()]
        assert forebay.current_context() is other
        forebay.set_current_stream(t)
        assert context.current_stream() == t and other.current_stream() == other.default_stream()
    with pytest.raises(forebay.InvalidArgument, match="int"):
        forebay.StreamCtx(3)  # type: ignore[arg-type]
    assert forebay.Stream(-1).priority == -1


def test_a_context_goes_with_what_refers_to_it() -> None:
    gc.disable()
    try:
        context = forebay.Context()
        forebay.set_current_stream(forebay.Stream(context, priority=-1))
        assert context.current_stream().priority == -1
        gone = weakref.ref(context)
        del context
        assert gone() is None
    finally:
        gc.enable()


def test_events_as_pytorch_has_them() -> None:
    with forebay.Context():
        event = forebay.Event()
        assert event.query()
        event.wait()
        event.synchronize()
        start, end = forebay.Event(enable_timing=True), forebay.Event(enable_timing=True)
        with pytest.raises(forebay.Error, match="never recorded"):
            start.elapsed_time(end)
        start.record()
        a = forebay.ones((64, 64))
        for _ in range(5):
            a = (a @ a).tanh()
        end.record()
        assert forebay.current_stream().record_event(event) is event
        forebay.synchronize()
        assert end.query() and event.query() and forebay.current_stream().query()
        assert start.elapsed_time(end) > 0 > end.elapsed_time(start)
        with pytest.raises(forebay.InvalidArgument, match="enable_timing"):
            start.elapsed_time(event)


def test_contexts_do_not_mix() -> None:
    with forebay.Context() as one:
        a, s, e = forebay.ones(4), forebay.Stream(), forebay.Event()
        e.record()
    with forebay.Context():
        b = forebay.ones(4)
        with pytest.raises(forebay.InvalidArgument, match="context"):
            a + b
        with pytest.raises(forebay.InvalidArgument, match="context"):
            forebay.current_stream().wait_stream(s)
        with pytest.raises(forebay.InvalidArgument, match="context"):
            forebay.current_stream().wait_event(e)
    assert (a + a).context is one


def test_what_is_asked_of_a_context() -> None:
    with pytest.raises(forebay.InvalidArgument, match="record=True"):
        forebay.Context().check()
    with pytest.raises(forebay.Error, match="abacus"):
        forebay.Context("abacus")
    with forebay.Context(memory_history=100) as context:
        a = forebay.zeros((1000,))
        assert context.memory()["requested_bytes"] == 4000
        del a
        context.start_recording()
        forebay.ones(3) + 1
        context.check()
        assert context.memory_picture("small").startswith("<svg") and context.trim() > 0
        context.reset_peaks()
        assert context.memory()["requested_peak_bytes"] == context.memory()["requested_bytes"]
    with pytest.raises(forebay.InvalidArgument, match="memory_history"):
        forebay.Context().memory_picture()


def test_memory_that_is_not_there_is_named() -> None:
    with forebay.Context(device_memory="1MiB"):
        kept = forebay.zeros((1 << 17,))
        with pytest.raises(forebay.OutOfBudget, match="1.0 MiB|1048576|bytes") as error:
            forebay.zeros((1 << 18,))
        assert error.value.budget == "device_memory"
        assert kept.sum().item() == 0


def test_several_threads_work_on_one_context() -> None:
    a, total = product()
    with forebay.Context(record=True) as context:
        pass
    wrong = []

    def work() -> None:
        with context, forebay.stream(forebay.Stream(context)):
            A = forebay.Tensor(a)
            for _ in range(5):
                if abs((A @ A).sum().item() - total) > 1e-2:
                    wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and races(context) == []


def test_ctrl_c_ends_a_wait() -> None:
    with forebay.Context(link_bytes_per_second=2 << 20) as context:
        tensor = forebay.Tensor(np.zeros(1 << 18, np.float32))
        for _ in range(2):
            tensor.copy_(np.ones(1 << 18, np.float32))
        sent: list[float] = []

        def interrupt() -> None:
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.1, interrupt)
        timer.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                context.synchronize()
                time.sleep(5)  # Where the wait was over before.
            assert time.monotonic() - sent[0] < 1
        finally:
            timer.join()
        assert tensor.sum().item() == 1 << 18


def test_ctrl_c_ends_the_first_use_of_much_memory() -> None:
    sent: list[float] = []

    def interrupt() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    with forebay.Context() as context:
        timer = threading.Timer(0.05, interrupt)
        timer.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                forebay.zeros((1 << 27,))
                time.sleep(5)  # Where it was over before.
            assert time.monotonic() - sent[0] < 1
        finally:
            timer.join()
        context.synchronize()
        assert forebay.ones((3,)).sum().item() == 3
