"""What changes between the steps of a trainer: the module, its attributes and modes, the loss, the optimizer and its state."""

from __future__ import annotations

import copy
import itertools
import random
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="there is no PyTorch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import forebay  # noqa: E402
import forebay.torch  # noqa: E402

BATCHES = [(torch.randn(8, 6, generator=torch.Generator().manual_seed(seed)), (torch.arange(8) * (seed + 1)) % 3) for seed in range(8)]
X, LABELS = BATCHES[0]
LOSS = nn.CrossEntropyLoss()
OPTIMIZERS: Dict[str, Callable[[Any], Any]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, eps=1e-3),
    "nadam": lambda parameters: torch.optim.NAdam(parameters, lr=1e-2, eps=1e-3),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "damped sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, dampening=0.5),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-2, eps=1e-2),
}


class Tempered(nn.Module):
    """Has a number, and texts and numbers in a list, that its results depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, 3))
        self.temperature = 1.0
        self.scales = [1.0, 2.0]
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.layers(x) / self.temperature * self.scales[0]


class Weighted(nn.Module):
    """A loss with a number and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = 1.0
        self.register_buffer("classes", torch.ones(3))

    def forward(self, outputs: Any, labels: Any) -> Any:
        return functional.cross_entropy(outputs, labels, self.classes) * self.weight


def made(kind: str = "adamw", **options: Any) -> Tuple[Any, Any, Any, Any, Any]:
    """Returns a module and its copy, an optimizer of each, and a trainer of the first."""
    torch.manual_seed(0)
    module = Tempered().layers
    theirs = copy.deepcopy(module)
    optimizer, their_optimizer = OPTIMIZERS[kind](module.parameters()), OPTIMIZERS[kind](theirs.parameters())
    return module, theirs, optimizer, their_optimizer, forebay.torch.Trainer(module, X, LOSS, optimizer, **options)


def torch_step(module: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    LOSS(module(BATCHES[number][0]), BATCHES[number][1]).backward()
    optimizer.step()


def steps_of_both(trainer: Any, theirs: nn.Module, optimizer: Any, numbers: range) -> None:
    """Makes steps in Forebay, and the same steps in PyTorch."""
    for number in numbers:
        trainer.step(*BATCHES[number])
        torch_step(theirs, optimizer, number)


def close(ours: Any, theirs: Any) -> None:
    for (name, one), other in zip(ours.state_dict().items(), theirs.state_dict().values()):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5), (name, one, other)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_pytorch_and_forebay_take_turns(kind: str) -> None:
    module, theirs, optimizer, their_optimizer, trainer = made(kind)
    for number in range(8):
        if number % 3 == 1:
            trainer.write_back()
            torch_step(module, optimizer, number)
        else:
            trainer.step(*BATCHES[number])
        torch_step(theirs, their_optimizer, number)
    trainer.write_back()
    close(module, theirs)


def test_a_checkpoint_of_module_and_optimizer_is_loaded_between_steps() -> None:
    module, theirs, optimizer, their_optimizer, trainer = made()
    steps_of_both(trainer, theirs, their_optimizer, range(2))
    trainer.write_back()
    saved = copy.deepcopy((module.state_dict(), optimizer.state_dict()))
    for number in range(4, 7):
        trainer.step(*BATCHES[number])
    # These steps are not written back.
    module.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    steps_of_both(trainer, theirs, their_optimizer, range(2, 4))
    trainer.write_back()
    close(module, theirs)
    assert {float(state["step"]) for state in optimizer.state.values()} == {4.0}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_state_of_the_optimizer_is_replaced_between_steps(kind: str) -> None:
    module, theirs, optimizer, their_optimizer, trainer = made(kind)
    first = copy.deepcopy(optimizer.state_dict())
    steps_of_both(trainer, theirs, their_optimizer, range(2))
    trainer.write_back()
    # The module stays as it is.
    for each in (optimizer, their_optimizer):
        each.load_state_dict(copy.deepcopy(first))
    steps_of_both(trainer, theirs, their_optimizer, range(2, 5))
    trainer.write_back()
    close(module, theirs)


def test_what_was_loaded_last_is_in_the_module_in_the_end() -> None:
    module, _, _, _, trainer = made()
    first = copy.deepcopy(module)
    with trainer:
        trainer.step(X, LABELS)
        module.load_state_dict(first.state_dict())
    close(module, first)


def test_weights_are_clipped_between_steps_of_an_optimizer_of_ours() -> None:
    module, theirs, _, their_optimizer, _ = made()
    trainer = forebay.torch.Trainer(module, X, LOSS, forebay.AdamW(1e-2, epsilon=1e-3, weight_decay=1e-2), decay="all")
    for number in range(4):
        trainer.step(*BATCHES[number])
        trainer.write_back()
        torch_step(theirs, their_optimizer, number)
        with torch.no_grad():
            for parameter in itertools.chain(module.parameters(), theirs.parameters()):
                parameter.clamp_(-0.2, 0.2)
    close(module, theirs)
    assert trainer.step_count == 4


def by_data(module: Any) -> None:
    for parameter in module.parameters():
        parameter.data.clamp_(-0.2, 0.2)


def by_numpy(module: Any) -> None:
    module[0].weight.detach().numpy()[:] *= -1


def by_division(module: Any) -> None:
    module[4].weight.data = module[4].weight / torch.linalg.matrix_norm(module[4].weight, 2)


def by_statistics(module: Any) -> None:
    module[1].running_mean.data.mul_(0.5)


@pytest.mark.parametrize("change", [by_data, by_numpy, by_division, by_statistics])
def test_changes_that_pytorch_does_not_count(change: Callable[[Any], None]) -> None:
    module, theirs, _, their_optimizer, trainer = made("sgd")
    for number in range(4):
        trainer.step(*BATCHES[number])
        trainer.write_back()
        torch_step(theirs, their_optimizer, number)
        with torch.no_grad():
            change(module)
            change(theirs)
    trainer.step(X, LABELS)
    torch_step(theirs, their_optimizer, 0)
    trainer.write_back()
    close(module, theirs)


class Constant(nn.Module):
    """Uses tensors that are neither its parameters nor saved with it."""

    def __init__(self, teacher: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.teachers = nn.Linear(6, 3), [teacher]
        self.mask = torch.ones(3)
        self.register_buffer("scale", torch.ones(3), persistent=False)
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, x: Any) -> Any:
        return (self.layer(x) - self.teachers[0](x)) * self.mask * self.scale + self.shift


def other_teacher(module: Any) -> None:
    for own, other in zip(module.teachers[0].parameters(), module.layer.parameters()):
        own.data.mul_(0.5).add_(other.data, alpha=0.5)


def other_mask(module: Any) -> None:
    module.mask = torch.tensor([0.5, 1.0, 1.0])


def other_elements(module: Any) -> None:
    module.mask.mul_(0.5)


def other_scale(module: Any) -> None:
    module.scale = module.scale * 0.5


def other_shift(module: Any) -> None:
    module.shift.data.add_(0.5)


@pytest.mark.parametrize(
    "change, words",
    [
        (other_teacher, "a tensor that the module uses in forward, .*test_torch_changes.py"),
        (other_mask, "the tensor 'mask' has changed"),
        (other_elements, "a tensor that the module uses in forward"),
        (other_scale, "the tensor 'scale' has changed"),
        (other_shift, "'shift', which this trainer does not train, has changed"),
    ],
)
def test_constants_that_change_are_refused_or_exported_again(change: Callable[[Any], None], words: str) -> None:
    module = Constant(nn.Linear(6, 3).requires_grad_(False))
    theirs = copy.deepcopy(module)
    trainer = forebay.torch.Trainer(module, X, LOSS, torch.optim.SGD(module.parameters(), lr=0.1))
    trainer.step(X, LABELS)
    trainer.write_back()
    trainer.step(X, LABELS)
    change(module)
    with pytest.raises(forebay.InvalidArgument, match=words):
        trainer.step(X, LABELS)
    module.load_state_dict(theirs.state_dict())
    module = copy.deepcopy(theirs)
    compiled = forebay.torch.compile(module)
    for number in range(3):
        found, expected = compiled(BATCHES[number][0]), theirs(BATCHES[number][0])
        assert torch.allclose(found, expected, atol=1e-5)
        change(module)
        change(theirs)


def test_a_tensor_of_a_loss_changes() -> None:
    weights = torch.ones(3)

    def loss(outputs: Any, labels: Any) -> Any:
        return functional.cross_entropy(outputs, labels, weights)

    module = nn.Linear(6, 3)
    trainer = forebay.torch.Trainer(module, X, loss, "sgd", learning_rate=0.1, example_labels=LABELS)
    trainer.step(X, LABELS)
    weights[1] = 2
    with pytest.raises(forebay.InvalidArgument, match="a tensor that the module uses in loss"):
        trainer.step(X, LABELS)


def test_random_numbers_of_others_are_refused() -> None:
    class Random(nn.Module):
        def __init__(self, draw: Callable[[], float]) -> None:
            super().__init__()
            self.layer, self.draw = nn.Linear(6, 3), draw

        def forward(self, x: Any) -> Any:
            return self.layer(x) * self.draw()

    for draw in (random.random, np.random.rand):
        before = random.getstate(), np.random.get_state()[1].tolist()
        with pytest.raises(forebay.InvalidArgument, match="Python's random or with NumPy"):
            forebay.torch.Trainer(Random(draw), X, LOSS, "sgd")
        with pytest.raises(forebay.InvalidArgument, match="Python's random or with NumPy"):
            forebay.torch.compile(Random(draw))(X)
        assert before == (random.getstate(), np.random.get_state()[1].tolist())


def test_statistics_of_a_run_between_steps_are_taken_over() -> None:
    module, theirs, _, their_optimizer, trainer = made()
    for number in range(3):
        trainer.step(*BATCHES[number])
        torch_step(theirs, their_optimizer, number)
        trainer.write_back()
        for each in (module, theirs):
            each(BATCHES[7][0])
    trainer.write_back()
    close(module, theirs)


def test_moving_averages_of_parameters(tmp_path: Path) -> None:
    module, theirs, _, their_optimizer, trainer = made(average=0.9)
    averages = [parameter.detach().clone() for parameter in theirs.parameters()]
    for number in range(3):
        trainer.step(*BATCHES[number])
        torch_step(theirs, their_optimizer, number)
        for average, parameter in zip(averages, theirs.parameters()):
            average.lerp_(parameter.detach(), 0.1)
    trainer.write_back()
    close(module, theirs)
    state = trainer.state()
    for (name, _), average in zip(module.named_parameters(), averages):
        np.testing.assert_allclose(state[f"{name}.average"], average.numpy(), rtol=1e-4, atol=1e-5)
    trainer.save_average(tmp_path / "average.onnx")
    for parameter, average in zip(theirs.parameters(), averages):
        parameter.data.copy_(average)
    found = forebay.Session(tmp_path / "average.onnx").run(X.numpy())
    np.testing.assert_allclose(next(iter(found.values())), theirs.eval()(X).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_nadam_has_one_momentum() -> None:
    for is_before in (False, True):
        module, _, optimizer, _, trainer = made("nadam")
        trainer.step(X, LABELS)
        if is_before:
            # PyTorch has made a step with another one.
            trainer.write_back()
            optimizer.param_groups[0]["betas"] = (0.5, 0.999)
            torch_step(module, optimizer, 1)
        optimizer.param_groups[0]["betas"] = (0.9, 0.999) if is_before else (0.5, 0.999)
        with pytest.raises(forebay.InvalidArgument, match="cycle_momentum=False"):
            trainer.step(X, LABELS)


def freeze(module: Any, loss: Any) -> None:
    module.layers[4].bias.requires_grad_(False)


def unfreeze(module: Any, loss: Any) -> None:
    module.layers[0].weight.requires_grad_(True)


def hook(module: Any, loss: Any) -> None:
    module.layers[4].bias.register_hook(lambda gradient: gradient * 2)


def other_mode(module: Any, loss: Any) -> None:
    module.layers[1].eval()


def other_rate(module: Any, loss: Any) -> None:
    module.layers[3].p = 0.5


def other_number(module: Any, loss: Any) -> None:
    module.temperature = 2.0


def other_list(module: Any, loss: Any) -> None:
    module.scales[0] = 3.0


def other_part(module: Any, loss: Any) -> None:
    module.layers[4] = nn.Linear(8, 3)


def other_weight(module: Any, loss: Any) -> None:
    loss.weight = 2.0


def other_classes(module: Any, loss: Any) -> None:
    loss.classes[0] = 2.0


@pytest.mark.parametrize(
    "change, words",
    [
        (freeze, "'layers.4.bias' does not require a gradient any more"),
        (unfreeze, "'layers.0.weight' requires a gradient, but did not"),
        (hook, "'layers.4.bias' has a hook"),
        (other_mode, r"'layers.1' \(BatchNorm1d\) is in evaluation mode"),
        (other_rate, "'layers.3.p' of the module is 0.5, but its export has 0.0"),
        (other_number, "'temperature' of the module is 2.0, but its export has 1.0"),
        (other_list, r"'scales' of the module is \[3.0, 2.0\], but its export has \[1.0, 2.0\]"),
        (other_part, "the module has other parts"),
        (other_weight, "'weight' of the loss is 2.0, but its export has 1.0"),
        (other_classes, "'classes' of the loss has changed"),
    ],
)
def test_changes_that_a_trainer_does_not_follow_are_refused(change: Callable[[Any, Any], None], words: str) -> None:
    module, loss = Tempered(), Weighted()
    module.layers[0].weight.requires_grad_(False)
    with pytest.warns(UserWarning, match="its attribute calls whenever"):
        trainer = forebay.torch.Trainer(module, X, loss, torch.optim.SGD(module.parameters(), lr=0.1), example_labels=LABELS)
    trainer.step(X, LABELS)
    trainer.write_back()
    # A run of the module, in either mode, is no change.
    module.eval()(X)
    module.train()
    trainer.step(X, LABELS)
    change(module, loss)
    with pytest.raises(forebay.InvalidArgument, match=words):
        trainer.step(X, LABELS)


def test_the_mode_of_the_whole_module_is_no_change() -> None:
    module = Tempered().layers.eval()
    trainer = forebay.torch.Trainer(module, X, LOSS, "sgd", learning_rate=0.1)
    for is_training in (False, True, False):
        trainer.step(X, LABELS)
        module.train(is_training)
    trainer.step(X, LABELS)


def test_losses_that_change_their_own_buffers_are_refused() -> None:
    class Counting(Weighted):
        def forward(self, outputs: Any, labels: Any) -> Any:
            self.classes += 1
            return super().forward(outputs, labels)

    loss = Counting()
    with pytest.raises(forebay.InvalidArgument, match="the loss changes its buffer or parameter classes"):
        forebay.torch.Trainer(nn.Linear(6, 3), X, loss, "sgd", learning_rate=0.1, example_labels=LABELS)
    assert loss.classes.tolist() == [1.0, 1.0, 1.0]


def test_parameters_of_others_are_refused() -> None:
    teacher = nn.Linear(6, 3)

    class Taught(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.teachers = [teacher]

        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                taught = self.teachers[0](x)
            return self.layer(x) + taught

    with pytest.raises(forebay.Error, match="uses a parameter that is not one of its own in forward"):
        forebay.torch.Trainer(Taught(), X, LOSS, "sgd", learning_rate=0.1)
    with pytest.raises(forebay.Error, match="uses a parameter that is not one of its own"):
        forebay.torch.compile(Taught())(X)
    teacher.requires_grad_(False)
    module = Taught()
    assert torch.allclose(forebay.torch.compile(module)(X), module(X), atol=1e-5)


def test_inference_mode() -> None:
    module = Tempered().layers
    compiled = forebay.torch.compile(module)
    for is_training in (False, True):
        expected = copy.deepcopy(module.train(is_training))
        with torch.inference_mode():
            assert torch.allclose(compiled(X * 1), expected(X), atol=1e-5)
        close(module, expected)
    # The plans made there have gradients.
    compiled(X).sum().backward()
    assert module[0].weight.grad is not None
    with torch.inference_mode(), pytest.raises(forebay.InvalidArgument, match=r"created within torch.inference_mode\(\)"):
        forebay.torch.compile(Tempered().layers)(X)
