"""Plans: what a step needs and does, before anything runs."""

from __future__ import annotations

import difflib
import html
import json
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union, cast

from . import _forebay, _options
from ._checks import number
from ._model import Model, ModelLike, as_model, native_model
from ._losses import Loss, loss_named
from ._optimizers import Optimizer, optimizer_named
from ._options import EngineOptions, PathLike, Size
from ._ranks import SimulatedStep
from .errors import InvalidArgument, OutOfBudget

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: The largest batch size that is tried.
_BATCH_MAX = 1 << 20


@dataclass(frozen=True)
class Machine:
    """A machine description included in the package, for ``forebay.plan(model, machine=machine)``. Its key works as well."""

    #: The key that :func:`plan` accepts.
    key: str
    #: Its name.
    name: str
    #: Memory of the device, in bytes.
    device_memory: int
    #: Memory of the host, in bytes.
    host_memory: int

    def __fspath__(self) -> str:
        return self.key


@dataclass(frozen=True)
class Offer:
    """A machine that can run the step."""

    #: The machine, as passed in.
    machine: str
    #: Its price per hour, as passed in.
    price_per_hour: Optional[float]
    #: The predicted seconds per step on this machine.
    seconds: float
    #: The price of a step; ``None`` without a price per hour.
    price_per_step: Optional[float]
    #: The plan of the step on this machine.
    plan: Plan


class Plan:
    """How a step runs within a budget: what is placed where, what moves when and why, and what it costs.

    A plan prints as a table, displays device memory over the step as a picture in notebooks, and answers questions. Plans are returned by
    :func:`forebay.plan`, :meth:`forebay.Trainer.plan` and :func:`forebay.torch.plan`.

    >>> import forebay
    >>> plan = forebay.plan(digits, train=True, batch_size=32, device_memory="60%")
    >>> plan.peak <= plan.budget < plan.needs
    True
    >>> plan.fits("8GiB"), plan.fits(plan.least), plan.fits(plan.least - 1)
    (True, True, False)
    """

    def __init__(self, planned: _forebay.Planned, again: Optional[_Again] = None, subject: str = "") -> None:
        self._data: Dict[str, Any] = json.loads(planned["explanation"])
        self._text = planned["text"]
        self._moves = planned["moves"]
        self._picture = planned["picture"]
        self._again = again
        self._subject = subject

    # Memory.

    @property
    def least(self) -> int:
        """The smallest budget of device memory that has a plan, in bytes."""
        return int(self._data["minimum_budget_bytes"])

    @property
    def least_because(self) -> str:
        """The node of the model that sets :attr:`least`."""
        return str(self._data["minimum_launch"])

    @property
    def needs(self) -> int:
        """The device memory that a step takes without a budget, in bytes."""
        return int(self._data["in_core_peak_bytes"])

    @property
    def peak(self) -> int:
        """The device memory that this plan takes, in bytes."""
        return int(self._data["device_peak_bytes"])

    @property
    def budget(self) -> Optional[int]:
        """The device memory budget in bytes; ``None`` if unlimited."""
        budget = self._data["device_budget_bytes"]
        return None if budget is None else int(budget)

    @property
    def host_memory(self) -> int:
        """The host memory that this plan takes, in bytes."""
        return int(self._data["host_bytes"])

    # Costs.

    @property
    def seconds(self) -> float:
        """The predicted seconds of a step."""
        return float(self._data["predicted_seconds"])

    @property
    def unlimited_seconds(self) -> float:
        """The predicted seconds of a step without a budget."""
        return float(self._data["in_core_predicted_seconds"])

    @property
    def bound_seconds(self) -> float:
        """A lower bound on the seconds of any plan of these launches, in this order and within the budget."""
        return float(self._data["lower_bound_seconds"])

    @property
    def bytes_to_device(self) -> int:
        """The number of bytes copied to the device in a step."""
        return int(self._data["bytes_to_device"])

    @property
    def bytes_from_device(self) -> int:
        """The number of bytes copied from the device in a step."""
        return int(self._data["bytes_from_device"])

    @property
    def moves(self) -> List[str]:
        """A description of every copy of a step, in order."""
        return list(self._moves)

    @property
    def buffers(self) -> List[str]:
        """The names of all buffers that are in device memory at some point, and of inputs and outputs that stay in the caller's memory."""
        return sorted({str(buffer["name"]) for buffer in [*self._data["placement"], *self._data["lent"]]})

    # Questions.

    def fits(self, size: Size) -> bool:
        """Returns whether the step runs within this much device memory: ``"8GiB"``, ``"50%"`` of what it needs, or a number of bytes.

        >>> import forebay
        >>> forebay.plan(digits, batch_size=8).fits("1KiB")
        False
        """
        budget = self._bytes(size)
        if budget < self.least:
            return False
        if self._again is None or not self._again.bounds_host:
            return True
        # Less memory on the device means more on the host, which also has a limit.
        return self._again.plan(device_memory=budget) is not None

    def why(self, buffer: str) -> str:
        """Describes where and when a buffer is in device memory, which copies move it, and why; or that it stays in the caller's memory.

        Raises:
            forebay.InvalidArgument: There is no buffer with this name; the message lists similar names.

        >>> import forebay
        >>> print(forebay.plan(digits, batch_size=8, simulate_device="1MiB").why("x").splitlines()[0])
        x: inputs, 2048 bytes at most
        >>> print(forebay.plan(digits, batch_size=8).why("x"))
        x: inputs, 2048 bytes in the caller's memory
          it never moves: launches read it there
        """
        for lent in self._data["lent"]:
            if lent["name"] == buffer:
                verb = "read" if lent["kind"] == "inputs" else "write"
                where = f"{buffer}: {lent['kind']}, {lent['bytes']} bytes in the caller's memory"
                return f"{where}\n  it never moves: launches {verb} it there"
        places = [place for place in self._data["placement"] if place["name"] == buffer]
        moves = [move for move in self._data["movements"] if move["name"] == buffer]
        if not places and not moves:
            close = difflib.get_close_matches(buffer, self.buffers, n=5, cutoff=0.3) or self.buffers[:5]
            raise InvalidArgument(f"the plan has no buffer {buffer!r}; its buffers include {', '.join(close)}")
        kind = (places or moves)[0]["kind"]
        most = max((int(place["bytes"]) for place in places), default=0)
        lines = [f"{buffer}: {kind}, {most} bytes at most"]
        for place in places:
            first, last = place["first_launch"], place["last_launch"]
            lines.append(f"  launches {first} to {last}: {place['bytes']} bytes at {place['offset_bytes']}")
        for move in moves:
            lines.append(f"  command {move['command']}: {move['bytes']} bytes {move['direction']}: {move['reason']}")
        if not moves:
            lines.append("  it never moves: it is produced on the device and last read there")
        return "\n".join(lines)

    def largest_batch(self, size: Size) -> int:
        """Returns the largest batch size whose step has a plan within this much device memory, or 0 if not even one sample fits. A size is
        as for :meth:`fits`: a percentage is of what this plan's step needs.

        Such a step can be slow, because everything but the largest launch may have to move.
        ``forebay.plan(..., batch_size=N, device_memory=size)`` predicts how slow.

        >>> import forebay
        >>> forebay.plan(digits, batch_size=1).largest_batch("256KiB") > 16
        True
        """
        budget = self._bytes(size)
        again = self._remake()

        def fits(batch: int) -> bool:
            # A plan without a budget is quick to make and knows the smallest possible budget.
            whole = again.plan(unlimited=True, batch_size=batch)
            return whole is not None and whole.fits(budget)

        if not fits(1):
            return 0
        good, bad = 1, 2
        while fits(bad):
            good, bad = bad, bad * 2
            if bad > _BATCH_MAX:
                return good
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if fits(middle) else (good, middle)
        return good

    def offers(self, machines: Union[Mapping[Any, float], Iterable[PathLike]]) -> List[Offer]:
        """Returns the machines that can run the step, the cheapest first.

        Args:
            machines: Prices per hour by machine, or only machines, ordered from the cheapest. A machine is one of
                :func:`forebay.machines`, its key, or a TOML file that describes one.
        """
        again = self._remake()
        prices: Dict[str, Optional[float]]
        if isinstance(machines, Mapping):
            prices = {os.fspath(machine): price for machine, price in cast("Mapping[Any, float]", machines).items()}
        else:
            prices = {os.fspath(machine): None for machine in machines}
        for machine, price in prices.items():
            if price is not None and not (number("a price", price) >= 0 and math.isfinite(price)):
                raise InvalidArgument(f"the price of '{machine}' must be a finite number of at least 0, but is {price}")
        found: List[Offer] = []
        for machine, price in prices.items():
            plan = again.plan(machine=machine)
            if plan is not None:
                per_step = None if price is None else price * plan.seconds / 3600
                found.append(Offer(machine, price, plan.seconds, per_step, plan))
        return sorted(found, key=lambda offer: offer.price_per_step or 0.0)

    def cheapest(self, machines: Union[Mapping[Any, float], Iterable[PathLike]]) -> Optional[Offer]:
        """Returns the machine on which a step costs least, or ``None`` if no machine can run it. See :meth:`offers`.

        >>> import forebay
        >>> plan = forebay.plan(digits, train=True, batch_size=32)
        >>> plan.cheapest({machine.key: 1.0 for machine in forebay.machines()}).seconds > 0
        True
        """
        offers = self.offers(machines)
        return offers[0] if offers else None

    def simulate(
        self, ranks: int, *, network: Optional[str] = None, shard: Optional[str] = None, slow: Optional[Mapping[int, float]] = None
    ) -> SimulatedStep:
        """Plans the same step for several processes that share each batch, and simulates all of them together.

        Args:
            ranks: The number of processes.
            network: The network between them: ``"infiniband-200g"``, or a speed and a latency such as ``"3GB/s,20us"``. The default is that
                of the machine, or ``"ethernet-10g"``.
            shard: Each process keeps only a slice of the optimizer's ``"state"``, also of ``"gradients"``, or also of ``"parameters"``.
            slow: How many times as long as planned the kernels of a process take, by rank.

        Raises:
            forebay.OutOfBudget: No plan of a process fits the budget.

        >>> import forebay
        >>> plan = forebay.plan(digits, train=True, batch_size=64)
        >>> even, uneven = plan.simulate(2), plan.simulate(2, slow={1: 2.0})
        >>> uneven.seconds > even.seconds, uneven.slowest, uneven.ranks[0].waiting_seconds > 0
        (True, 1, True)
        """
        return SimulatedStep(self._remake().simulate((ranks, network, shard, dict(slow or {}))), self.seconds)

    def _remake(self) -> _Again:
        if self._again is None:
            raise InvalidArgument("this is the plan of a trainer; use forebay.plan for a plan that can be made for other sizes")
        return self._again

    def _bytes(self, size: Size) -> int:
        text = str(_options.size_text(size)).strip()
        if not text.endswith("%"):
            return _forebay.parse_size(text)
        try:
            return int(self.needs * float(text[:-1]) / 100)
        except (ValueError, OverflowError):
            raise InvalidArgument(f"{text!r} is not a size; pass a number of bytes or a string such as '8GiB' or '50%'") from None

    # Output.

    def to_dict(self) -> Dict[str, Any]:
        """Returns all numbers, placements and moves as plain data."""
        copy: Dict[str, Any] = json.loads(json.dumps(self._data))
        return copy

    def svg(self) -> str:
        """Returns device memory over the step as an SVG picture."""
        return self._picture

    def __str__(self) -> str:
        return self._text.rstrip("\n")

    def __repr__(self) -> str:
        size = _forebay.format_size
        within = "" if self.budget is None else f" within {size(self.budget)}"
        return f"<Plan: {size(self.peak)} on the device{within}; needs {size(self.needs)}, at least {size(self.least)}>"

    def _repr_html_(self) -> str:
        size = _forebay.format_size
        slower = self.seconds / self.unlimited_seconds if self.unlimited_seconds > 0 else 1.0
        rows = {
            "device memory": size(self.peak) + ("" if self.budget is None else f" of {size(self.budget)}"),
            "without a budget": size(self.needs),
            "least possible": f"{size(self.least)} (for {self.least_because})",
            "moves in a step": f"{size(self.bytes_to_device)} to the device, {size(self.bytes_from_device)} from it",
            "time of a step, predicted": f"{self.seconds:.3g} s, {slower:.2f} times that without a budget",
        }
        cells = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in rows.items())
        return f"<div><b>{html.escape(self._subject)}</b><table>{cells}</table>{self._picture}</div>"

    def _repr_svg_(self) -> str:
        return self._picture


class _Again:
    """Makes the same plan with other sizes, budgets or machines."""

    def __init__(
        self, model: Model, engine: Dict[str, Any], sizes: Dict[str, Any], training: Optional[Dict[str, Any]]
    ) -> None:
        self._model = model
        self._engine = engine
        self._sizes = sizes
        self._training = training

    @property
    def bounds_host(self) -> bool:
        return self._engine.get("host_memory") is not None or self._engine.get("machine") is not None

    def make(self) -> Plan:
        title = f"device memory of {self._model.name} over a step"
        planned = _forebay.plan(native_model(self._model), self._engine, self._sizes, self._training, title)
        return Plan(planned, self, f"{'training step' if self._training else 'run'} of {self._model.name}")

    def simulate(self, processes: Tuple[int, Optional[str], Optional[str], Mapping[int, float]]) -> _forebay.SimulatedStep:
        return _forebay.SimulatedStep(native_model(self._model), self._engine, self._sizes, self._training, processes)

    def plan(
        self,
        device_memory: Optional[int] = None,
        batch_size: Optional[int] = None,
        machine: Optional[str] = None,
        *,
        unlimited: bool = False,
    ) -> Optional[Plan]:
        """Returns the plan, or ``None`` if there is none within the budgets."""
        engine, sizes = dict(self._engine), dict(self._sizes)
        if unlimited or device_memory is not None:
            engine["simulate_device"] = None if unlimited else str(device_memory)
        if machine is not None:
            # The machine's memories are the budgets.
            engine.update(machine=machine, simulate_device=None, host_memory=None)
        if batch_size is not None:
            sizes["batch_size"] = batch_size
        try:
            return _Again(self._model, engine, sizes, self._training).make()
        except OutOfBudget:
            return None


def plan(
    model: ModelLike,
    loss: Union[None, str, Loss] = None,
    optimizer: Union[None, str, Optimizer] = None,
    *,
    train: Optional[bool] = None,
    device: str = "host",
    device_memory: Optional[Size] = None,
    batch_size: Optional[int] = None,
    sizes: Optional[Mapping[str, int]] = None,
    loss_output: Optional[str] = None,
    decay: Optional[str] = None,
    freeze: Iterable[str] = (),
    **options: Unpack[EngineOptions],
) -> Plan:
    """Plans a step without running it: a training step if ``train`` is true or a loss or an optimizer is given, otherwise inference.

    Args:
        model: A :class:`forebay.Model`, a path, bytes, or an ``onnx.ModelProto``.
        loss: As for :class:`forebay.Trainer`.
        optimizer: As for :class:`forebay.Trainer`.
        train: Whether to plan a training step.
        device: As for :class:`forebay.Trainer`. ``machine=...`` plans for a machine that need not be present.
        device_memory: A budget for the tensors on the device: ``"8GiB"``, or ``"50%"`` of what the step takes without one. What does
            not fit is moved to host memory and back, or recomputed.
        batch_size: The batch size, if the model leaves it open or to override it.
        sizes: Other sizes that the model leaves open, by symbol or as ``input[dimension]``.
        loss_output: As for :class:`forebay.Trainer`.
        decay: As for :class:`forebay.Trainer`.
        freeze: As for :class:`forebay.Trainer`.
        **options: See :class:`forebay.EngineOptions`.

    Raises:
        forebay.OutOfBudget: No plan fits the budget; ``least`` is the smallest sufficient budget in bytes.

    >>> import forebay
    >>> plan = forebay.plan(digits, train=True, batch_size=32)
    >>> plan.budget is None and plan.peak == plan.needs
    True
    >>> print(plan)  # doctest: +ELLIPSIS
    device budget ...
    """
    if device_memory is not None:
        if options.get("simulate_device") is not None:
            raise InvalidArgument("simulate_device is the device memory of a simulated device; pass only one of device_memory and simulate_device")
        options["simulate_device"] = device_memory
    engine = _options.engine(device, None, options)
    training: Optional[Dict[str, Any]] = None
    if train or (train is None and (loss is not None or optimizer is not None)):
        training = _options.training(
            loss_named("softmax_cross_entropy" if loss is None else loss),
            optimizer_named(optimizer, None),
            loss_output=loss_output,
            decay=decay,
            freeze=freeze if isinstance(freeze, str) else list(freeze),
        )
    return _Again(as_model(model), engine, _options.open_sizes(batch_size, sizes), training).make()


def machines() -> List[Machine]:
    """Returns the machine descriptions included in the package.

    >>> import forebay
    >>> any(machine.key == "laptop-8gb" for machine in forebay.machines())
    True
    """
    return [Machine(*machine) for machine in _forebay.machines()]


__all__ = ["Machine", "Offer", "PathLike", "Plan", "machines", "plan"]
