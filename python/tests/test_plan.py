"""Plans and their answers."""

from __future__ import annotations

import xml.etree.ElementTree as xml

import pytest

import forebay


def test_plans_print_and_draw(digits: str) -> None:
    plan = forebay.plan(digits, train=True, batch_size=32, device_memory="60%")
    assert plan.budget is not None and plan.peak <= plan.budget < plan.needs and plan.least <= plan.budget
    assert "device peak" in str(plan) and "needs" in repr(plan)
    assert xml.fromstring(plan.svg()).tag.endswith("svg")
    assert "<table>" in plan._repr_html_() and "<svg" in plan._repr_html_()
    assert plan.bytes_to_device > 0 and plan.moves
    assert plan.to_dict()["device_peak_bytes"] == plan.peak
    assert plan.seconds >= plan.bound_seconds > 0


def test_what_fits(digits: str) -> None:
    plan = forebay.plan(digits, optimizer="adamw", batch_size=32)
    assert plan.fits("8GiB") and plan.fits("100%") and plan.fits(plan.least) and not plan.fits(plan.least - 1)
    forebay.plan(digits, optimizer="adamw", batch_size=32, device_memory=plan.least)
    with pytest.raises(forebay.OutOfBudget) as error:
        forebay.plan(digits, optimizer="adamw", batch_size=32, device_memory=plan.least - 1)
    assert error.value.least == plan.least
    limited = forebay.plan(digits, optimizer="adamw", batch_size=32, host_memory="1GiB")
    assert limited.fits(limited.least)
    for size in ("abc%", "nan%", 1.5):
        with pytest.raises(forebay.InvalidArgument, match="is not a size"):
            plan.fits(size)  # type: ignore[arg-type]


def test_processes_are_simulated_together(digits: str) -> None:
    plan = forebay.plan(digits, optimizer="adam", batch_size=64, machine="h200")
    even = plan.simulate(4, network="infiniband-200g")
    assert len(even.ranks) == 4 and even.efficiency == even.speedup / 4 == plan.seconds / even.seconds / 4
    assert even.ranks[0].sent_bytes > 0 and "on 4 processes" in repr(even)
    assert plan.simulate(4, network="1GB/s,1ms").seconds > even.seconds
    assert plan.simulate(4, network="infiniband-200g", shard="parameters").ranks[0].sent_bytes != even.ranks[0].sent_bytes
    with pytest.raises(forebay.InvalidArgument, match="unknown kind of shard 'weights'; expected one of state, gradients, parameters"):
        plan.simulate(2, shard="weights")
    uneven = plan.simulate(4, network="infiniband-200g", slow={2: 3.0})
    assert uneven.seconds > even.seconds and uneven.slowest == 2 and uneven.ranks[2].slowness == 3.0
    assert uneven.ranks[0].waiting_seconds > uneven.ranks[2].waiting_seconds
    names = [event["args"]["name"] for event in uneven.trace()["traceEvents"] if event["name"] == "process_name"]
    assert "process 2" in names
    assert forebay.plan(digits, batch_size=64).simulate(2).seconds > 0
    with pytest.raises(forebay.InvalidArgument, match="processes are numbered 0 to 1"):
        plan.simulate(2, slow={2: 2.0})
    with pytest.raises(forebay.InvalidArgument, match="network: expected a speed and a latency"):
        plan.simulate(2, network="string")
    with pytest.raises(forebay.InvalidArgument, match="0 processes cannot be simulated; expected 1 to 4096"):
        plan.simulate(0)


def test_a_budget_is_one_of_two_arguments(digits: str) -> None:
    assert forebay.plan(digits, batch_size=8, device_memory="1MiB", simulate_device=None).budget == 1 << 20
    assert forebay.plan(digits, batch_size=8, simulate_device="1MiB").budget == 1 << 20
    with pytest.raises(forebay.InvalidArgument, match="only one of device_memory and simulate_device"):
        forebay.plan(digits, batch_size=8, device_memory="1MiB", simulate_device="1MiB")


def test_updates_on_the_host(digits: str) -> None:
    def plan(updates: str) -> forebay.Plan:
        return forebay.plan(digits, optimizer="adam", batch_size=32, simulate_device="512KiB", updates=updates)

    assert plan("device").to_dict()["host_updates"] == 0
    on_host = plan("host")
    assert on_host.to_dict()["host_updates"] > 0
    assert not [move for move in on_host.to_dict()["movements"] if "moment" in move["name"]], "state never crosses the link"
    # The CPU runs every operator itself.
    assert forebay.plan(digits, batch_size=8, host_operators="never").to_dict()["host_launches"] == 0
    with pytest.raises(forebay.InvalidArgument, match="unknown value of host_operators 'always'; expected one of needed, never"):
        forebay.plan(digits, batch_size=8, host_operators="always")
    with pytest.raises(forebay.InvalidArgument, match="unknown place for updates 'disk'; expected one of device, host"):
        plan("disk")


def test_the_largest_batch(digits: str) -> None:
    plan = forebay.plan(digits, train=True, batch_size=1)
    largest = plan.largest_batch("256KiB")
    assert largest > 1
    forebay.plan(digits, train=True, batch_size=largest, device_memory="256KiB")
    with pytest.raises(forebay.OutOfBudget):
        forebay.plan(digits, train=True, batch_size=largest + 1, device_memory="256KiB")
    assert plan.largest_batch("4KiB") == 0
    assert forebay.plan(digits, train=True, batch_size=largest).largest_batch("100%") >= largest


def test_reasons(digits: str) -> None:
    plan = forebay.plan(digits, train=True, batch_size=32, device_memory="60%")
    moved = plan.to_dict()["movements"][0]
    assert moved["reason"] in plan.why(moved["name"])
    with pytest.raises(forebay.InvalidArgument, match="no buffer 'nothing'"):
        plan.why("nothing")
    for buffer in plan.buffers:
        assert plan.why(buffer).startswith(buffer)


def test_machines(digits: str) -> None:
    plan = forebay.plan(digits, train=True, batch_size=32)
    keys = [machine.key for machine in forebay.machines()]
    prices = {key: 1.0 + index for index, key in enumerate(keys)}
    offers = plan.offers(prices)
    assert [offer.machine for offer in offers if offer.price_per_step is None] == []
    steps = [offer.price_per_step or 0 for offer in offers]
    assert steps == sorted(steps) and len(steps) == len(keys)
    best = plan.cheapest(prices)
    assert best is not None and (best.machine, best.seconds) == (offers[0].machine, offers[0].seconds)
    first = plan.cheapest(reversed(keys))
    assert first is not None and first.machine == keys[-1] and first.price_per_step is None
    assert plan.cheapest({}) is None
    assert forebay.plan(digits, train=True, batch_size=32, machine=keys[0]).budget is not None
    with pytest.raises(forebay.InvalidArgument, match="neither a known machine nor a file"):
        plan.cheapest(["abacus"])


def test_plans_of_trainers(digits: str) -> None:
    plan = forebay.Trainer(digits, batch_size=8, simulate_device="70%").plan()
    assert plan.budget is not None and plan.fits("70%")
    with pytest.raises(forebay.InvalidArgument, match="forebay.plan"):
        plan.largest_batch("1GiB")


def test_sizes_that_are_open(digits: str) -> None:
    with pytest.raises(forebay.InvalidArgument, match="batch_size=8"):
        forebay.plan(digits)
    with pytest.raises(forebay.InvalidArgument):
        forebay.plan(digits, batch_size=8, device_memory="many")


def test_machines_are_taken_as_they_are_listed(digits: str) -> None:
    plan = forebay.plan(digits, batch_size=8)
    machines = forebay.machines()
    by_key = plan.offers({machine.key: 2.0 for machine in machines})
    for given in ({machine: 2.0 for machine in machines}, machines):
        assert sorted(offer.machine for offer in plan.offers(given)) == sorted(offer.machine for offer in by_key)
    assert forebay.plan(digits, batch_size=8, machine=machines[0]).seconds == next(
        offer.seconds for offer in by_key if offer.machine == machines[0].key
    )


@pytest.mark.parametrize("price", [-1, float("nan"), float("inf")])
def test_prices_that_are_none_are_refused(digits: str, price: float) -> None:
    with pytest.raises(forebay.InvalidArgument, match="the price of 'laptop-8gb' must be a finite number of at least 0"):
        forebay.plan(digits, batch_size=8).cheapest({"laptop-8gb": price})
