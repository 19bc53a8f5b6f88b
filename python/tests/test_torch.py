"""PyTorch modules."""

from __future__ import annotations

import copy
from typing import Any, Dict, Tuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="there is no PyTorch")
from torch import nn  # noqa: E402

import forebay  # noqa: E402
import forebay.torch  # noqa: E402


class Net(nn.Module):  # type: ignore[misc]
    """Convolution, normalization, residual connection."""

    def __init__(self) -> None:
        super().__init__()
        # A bias before a normalization has no gradient but rounding, of which Adam makes whole steps.
        self.convolution = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.normalization = nn.BatchNorm2d(8)
        self.more = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.head = nn.Linear(8, 10)

    def forward(self, picture: Any) -> Any:
        x = torch.relu(self.normalization(self.convolution(picture)))
        return self.head((x + torch.relu(self.more(x))).mean((2, 3)))


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "plain sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, weight_decay=1e-2),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=1e-1),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, momentum=0.5, centered=True, weight_decay=1e-2, eps=1e-3),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=1e-2, lr_decay=0.1, weight_decay=1e-2, eps=1e-3),
    "damped sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, dampening=0.4, weight_decay=1e-3),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, betas=(0.9, 0.5), weight_decay=1e-2, eps=1e-3, amsgrad=True),
    "amsgrad, decoupled": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.5), weight_decay=0.1, eps=1e-3, amsgrad=True),
    "adamax": lambda parameters: torch.optim.Adamax(parameters, lr=1e-3, weight_decay=1e-2, eps=1e-3),
    "nadam": lambda parameters: torch.optim.NAdam(parameters, lr=1e-3, weight_decay=1e-2, eps=1e-3, momentum_decay=0.1),
    "radam": lambda parameters: torch.optim.RAdam(parameters, lr=1e-3, weight_decay=1e-2, eps=1e-3),
    "adadelta": lambda parameters: torch.optim.Adadelta(parameters, lr=0.5, weight_decay=1e-2, eps=1e-3),
}


def data(seed: int = 0) -> Tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(16, 1, 8, 8, generator=generator), torch.randint(0, 10, (16,), generator=generator)


def torch_step(module: Any, optimizer: Any, x: Any, labels: Any, loss: Any) -> float:
    module.train()
    optimizer.zero_grad()
    value = loss(module(x), labels)
    value.backward()
    optimizer.step()
    return float(value.detach())


def close(ours: Dict[str, Any], theirs: Dict[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        left, right = ours[name].double(), theirs[name].double()
        assert torch.allclose(left, right, rtol=2e-4, atol=2e-5), (name, float((left - right).abs().max()))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_steps_are_pytorchs(kind: str) -> None:
    torch.manual_seed(0)
    module = Net()
    theirs = copy.deepcopy(module)
    optimizer = OPTIMIZERS[kind](module.parameters())
    their_optimizer = OPTIMIZERS[kind](theirs.parameters())
    loss = nn.CrossEntropyLoss()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    trainer = forebay.torch.Trainer(module, data()[0], loss=loss, optimizer=optimizer, simulate_device="50%")
    close(module.state_dict(), before)  # The export left no trace.
    for step in range(3):
        ours = trainer.step(*data(step)).loss
        assert ours == pytest.approx(torch_step(theirs, their_optimizer, *data(step), loss), rel=1e-4)
    trainer.write_back()
    close(module.state_dict(), theirs.state_dict())
    assert int(module.normalization.num_batches_tracked) == 3
    # PyTorch goes on, and Forebay after it.
    for run, its_optimizer in ((module, optimizer), (theirs, their_optimizer)):
        torch_step(run, its_optimizer, *data(3), loss)
    close(module.state_dict(), theirs.state_dict())
    again = forebay.torch.Trainer(module, data()[0], loss=loss, optimizer=optimizer)
    again.step(*data(4))
    again.write_back()
    torch_step(theirs, their_optimizer, *data(4), loss)
    close(module.state_dict(), theirs.state_dict())


def test_radam_divides_by_roots_later() -> None:
    torch.manual_seed(0)
    module = nn.Linear(6, 3)
    theirs = copy.deepcopy(module)
    x, labels = torch.randn(8, 6), torch.arange(8) % 3
    optimizer, their_optimizer = (torch.optim.RAdam(each.parameters(), lr=0.05, betas=(0.9, 0.95)) for each in (module, theirs))
    trainer = forebay.torch.Trainer(module, x, optimizer=optimizer)
    for _ in range(10):
        trainer.step(x, labels)
        torch_step(theirs, their_optimizer, x, labels, nn.CrossEntropyLoss())
    trainer.write_back()
    close(module.state_dict(), theirs.state_dict())


def test_pytorch_goes_on_with_optimizers_of_ours() -> None:
    x, labels = torch.randn(8, 6), torch.arange(8) % 3
    for ours, words in [
        (forebay.SGD(0.1, 0.9, dampening=0.5), "dampening: 0.5"),
        (forebay.AdamW(0.1, amsgrad=True), "amsgrad: True"),
        (forebay.Adamax(0.1), "Adamax"),
        (forebay.NAdam(0.1, momentum_decay=0.1), "momentum_decay: 0.1"),
        (forebay.RAdam(0.1), "RAdam"),
        (forebay.Adadelta(0.1), "rho: 0.9"),
    ]:
        trainer = forebay.torch.Trainer(nn.Linear(6, 3), x, optimizer=ours)
        trainer.step(x, labels)
        made = trainer.make_optimizer()
        assert words in repr(made) and len(made.state) == 2, ours
        torch_step(trainer.module, made, x, labels, nn.CrossEntropyLoss())
    with pytest.raises(forebay.InvalidArgument, match="leave out one of them"):
        forebay.torch.Trainer(nn.Linear(6, 3), x, optimizer=forebay.SGD(0.1, 0.9, nesterov=True, dampening=0.5))
    with pytest.raises(forebay.InvalidArgument, match="has no amsgrad"):
        forebay.torch.Trainer(nn.Linear(6, 3), x, optimizer=forebay.Adam8bit(amsgrad=True))


def test_changes_of_the_module_are_taken_over() -> None:
    torch.manual_seed(0)
    module = Net()
    module.more.requires_grad_(False)
    theirs = copy.deepcopy(module)
    runs = []
    for each in (module, theirs):
        runs.append((each, torch.optim.Adam([parameter for parameter in each.parameters() if parameter.requires_grad], lr=1e-2)))
    trainer = forebay.torch.Trainer(module, data()[0], optimizer=runs[0][1])
    loss = nn.CrossEntropyLoss()
    trainer.step(*data(0))
    torch_step(*runs[1], *data(0), loss)
    trainer.write_back()
    # PyTorch makes a step: the optimizer's state has changed as well.
    for run in runs:
        torch_step(*run, *data(1), loss)
    assert trainer.step(*data(2)).loss == pytest.approx(torch_step(*runs[1], *data(2), loss), rel=1e-4)
    # One parameter changes before the step's results are written back.
    for each in (module, theirs):
        with torch.no_grad():
            each.head.bias.fill_(0.5)
    assert trainer.evaluate(*data(0)).loss == pytest.approx(float(loss(theirs.eval()(data(0)[0]), data(0)[1]).detach()), rel=1e-4)
    trainer.step(*data(3))
    torch_step(*runs[1], *data(3), loss)
    trainer.write_back()
    close(module.state_dict(), theirs.state_dict())
    with torch.no_grad():
        module.more.weight.mul_(2)
    with pytest.raises(forebay.InvalidArgument, match="'more.weight', which this trainer does not train, has changed"):
        trainer.step(*data(4))


def test_skipped_steps_are_not_pytorchs() -> None:
    module = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(module.parameters())
    trainer = forebay.torch.Trainer(module, torch.ones(6, 4), loss=nn.CrossEntropyLoss(), optimizer=optimizer, on_nan="skip")
    labels = torch.arange(6) % 3
    assert trainer.step(torch.full((6, 4), float("nan")), labels).skipped
    trainer.write_back()
    assert not optimizer.state
    trainer.step(torch.ones(6, 4), labels)
    trainer.write_back()
    assert [int(state["step"]) for state in optimizer.state.values()] == [1, 1]
    with pytest.raises(forebay.InvalidArgument, match="does not take shard"):
        forebay.torch.Trainer(module, torch.ones(6, 4), shard="state")


def test_a_data_loader_and_a_schedule() -> None:
    torch.manual_seed(0)
    module = Net()
    theirs = copy.deepcopy(module)
    pictures, labels = (torch.cat(parts) for parts in zip(*(data(seed) for seed in range(4))))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(pictures, labels), batch_size=16)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    trainer = forebay.torch.Trainer(module, pictures[:16], loss=nn.CrossEntropyLoss(), optimizer=optimizer)
    trainer.fit(loader, epochs=2, callbacks=lambda *_: schedule.step(), progress=False)
    their_optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    their_schedule = torch.optim.lr_scheduler.ExponentialLR(their_optimizer, 0.5)
    for _ in range(2):
        for x, y in loader:
            torch_step(theirs, their_optimizer, x, y, nn.CrossEntropyLoss())
            their_schedule.step()
    close(module.state_dict(), theirs.state_dict())


def test_any_loss_is_exported() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    theirs = copy.deepcopy(module)
    x, y = torch.randn(16, 8), torch.randn(16, 1)

    def loss(output: Any, target: Any) -> Any:
        return (output - target).abs().mean() + 0.1 * (output**2).mean()

    with pytest.raises(forebay.InvalidArgument, match="example_labels"):
        forebay.torch.Trainer(module, x, loss=loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with forebay.torch.Trainer(module, x, loss=loss, example_labels=y, optimizer=optimizer) as trainer:
        ours = trainer.step(x, y).loss
    assert ours == pytest.approx(torch_step(theirs, torch.optim.SGD(theirs.parameters(), lr=0.1), x, y, loss), rel=1e-5)
    close(module.state_dict(), theirs.state_dict())


@pytest.mark.parametrize(
    "loss",
    [
        nn.L1Loss(),
        nn.HuberLoss(delta=0.5),
        nn.SmoothL1Loss(beta=0.3),
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0)),
        nn.KLDivLoss(reduction="batchmean"),
        nn.CrossEntropyLoss(weight=torch.arange(1.0, 6.0), label_smoothing=0.1),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_losses_of_pytorch_become_ours(loss: Any) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 5), nn.LogSoftmax(1))
    theirs = copy.deepcopy(module)
    x, y = torch.randn(16, 8), torch.softmax(torch.randn(16, 5), 1)
    labels = torch.arange(16) % 5 if isinstance(loss, nn.CrossEntropyLoss) else y
    # Without example labels: nothing is exported with the module.
    with forebay.torch.Trainer(module, x, loss=loss, optimizer=torch.optim.SGD(module.parameters(), lr=0.1)) as trainer:
        ours = trainer.step(x, labels).loss
    expected = torch_step(theirs, torch.optim.SGD(theirs.parameters(), lr=0.1), x, labels, loss)
    assert ours == pytest.approx(expected, rel=1e-5)
    close(module.state_dict(), theirs.state_dict())


def test_soft_labels_are_those_of_pytorch() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 5))
    theirs = copy.deepcopy(module)
    x, y = torch.randn(16, 8), torch.softmax(torch.randn(16, 5), 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with forebay.torch.Trainer(module, x, loss=forebay.SoftCrossEntropy(), optimizer=optimizer) as trainer:
        ours = trainer.step(x, y).loss
    expected = torch_step(theirs, torch.optim.SGD(theirs.parameters(), lr=0.1), x, y, nn.CrossEntropyLoss())
    assert ours == pytest.approx(expected, rel=1e-5)
    close(module.state_dict(), theirs.state_dict())


def test_parts_that_do_not_train() -> None:
    torch.manual_seed(0)
    module = Net()
    module.convolution.requires_grad_(False)
    kept = module.convolution.weight.clone()
    optimizer = torch.optim.SGD(module.head.parameters(), lr=0.1)
    trainer = forebay.torch.Trainer(module, data()[0], optimizer=optimizer)
    assert sorted(trainer.parameters()) == ["head.bias", "head.weight"]
    trainer.fit([data()], progress=False)
    assert torch.equal(module.convolution.weight, kept)


def test_shared_parameters() -> None:
    torch.manual_seed(0)

    class Tied(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8, bias=False)
            self.second = nn.Linear(8, 8, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: Any) -> Any:
            return self.second(torch.relu(self.first(x)))

    module = Tied()
    theirs = copy.deepcopy(module)
    x, labels = torch.randn(16, 8), torch.arange(16) % 8
    trainer = forebay.torch.Trainer(module, x, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
    for _ in range(2):
        trainer.step(x, labels)
        torch_step(theirs, torch.optim.SGD(theirs.parameters(), lr=0.1), x, labels, nn.CrossEntropyLoss())
    trainer.write_back()
    close(module.state_dict(), theirs.state_dict())


def test_pytorch_goes_on_with_an_optimizer_of_ours() -> None:
    torch.manual_seed(0)
    module = Net()
    theirs = copy.deepcopy(module)
    trainer = forebay.torch.Trainer(module, data()[0], optimizer=forebay.Adam(1e-3))
    trainer.fit([data(0), data(1)], progress=False)
    their_optimizer = torch.optim.Adam(theirs.parameters(), lr=1e-3)
    for seed in range(2):
        torch_step(theirs, their_optimizer, *data(seed), nn.CrossEntropyLoss())
    torch_step(module, trainer.make_optimizer(), *data(2), nn.CrossEntropyLoss())
    torch_step(theirs, their_optimizer, *data(2), nn.CrossEntropyLoss())
    close(module.state_dict(), theirs.state_dict())


def test_what_cannot_be_is_refused() -> None:
    module = Net()
    x, _ = data()
    for optimizer, words in [
        (torch.optim.Rprop(module.parameters()), "Rprop"),
        (torch.optim.SGD(Net().parameters(), lr=0.1), "do not belong to the module"),
    ]:
        with pytest.raises(forebay.InvalidArgument, match=words):
            forebay.torch.Trainer(module, x, optimizer=optimizer)
    with pytest.raises(forebay.OutOfBudget) as error:
        forebay.torch.Trainer(Net(), x, simulate_device="1KiB")
    assert error.value.least is not None


def test_plans_of_modules() -> None:
    module = Net()
    plan = forebay.torch.plan(module, data()[0], "50%")
    assert plan.budget is not None and plan.peak <= plan.budget and plan.fits("1GiB")
    assert plan.largest_batch("1MiB") > 1
    assert forebay.torch.plan(module, data()[0], train=False).least < plan.needs
    large = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 4))
    whole = forebay.torch.plan(large, torch.zeros(4, 64), optimizer="adam").needs
    large[0].requires_grad_(False)
    assert forebay.torch.plan(large, torch.zeros(4, 64), optimizer="adam").needs < whole / 2
    assert forebay.torch.plan(large, torch.zeros(4, 64), optimizer=torch.optim.Adam(large[2].parameters())).needs < whole / 2


def test_tensors_go_in(digits: str) -> None:
    x = torch.randn(4, 1, 8, 8, requires_grad=True)
    session = forebay.Session(digits)
    assert np.array_equal(session.run(x)["logits"], session.run(x.detach().numpy())["logits"])
    assert np.array_equal(session.run(x.transpose(2, 3))["logits"], session.run(x.detach().numpy().swapaxes(2, 3))["logits"])


class ScaledEmbedding(nn.Embedding):
    """Embeddings as Gemma has them: those of PyTorch, times a number."""

    def __init__(self, *sizes: int, padding_idx: int) -> None:
        super().__init__(*sizes, padding_idx=padding_idx)
        self.register_buffer("scale", torch.tensor(4.0), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * self.scale


@pytest.mark.parametrize("kind", [nn.Embedding, ScaledEmbedding])
@pytest.mark.parametrize("row", [0.0, 0.5])
def test_padding_rows_have_no_gradient(kind: Any, row: float) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(kind(9, 6, padding_idx=2), nn.Flatten(), nn.Linear(30, 4))
    with torch.no_grad():
        module[0].weight[2] = row
    theirs = copy.deepcopy(module)
    ids, labels = torch.tensor([[1, 2, 2, 3, 2], [2, 4, 5, 6, 2]]), torch.tensor([1, 3])
    assert torch.allclose(forebay.torch.compile(module)(ids), module(ids), atol=1e-6)
    trainer = forebay.torch.Trainer(module, ids, optimizer=forebay.SGD(0.05))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.05)
    for _ in range(3):
        expected = torch_step(theirs, optimizer, ids, labels, nn.functional.cross_entropy)
        assert abs(trainer.step(ids, labels).loss - expected) < 1e-5
    trainer.write_back()
    close(module.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_parameter_groups_and_their_schedules(kind: str) -> None:
    def grouped(net: Any) -> Tuple[Any, Any]:
        matrices = [parameter for parameter in net.parameters() if parameter.ndim > 1]
        others = [parameter for parameter in net.parameters() if parameter.ndim < 2]
        groups = [{"params": matrices[:2], "weight_decay": 0.1}, {"params": matrices[2:], "lr": 2e-3}, {"params": others, "weight_decay": 0.0}]
        optimizer = (
            torch.optim.SGD(groups, lr=1e-2, momentum=0.9, weight_decay=1e-2)
            if kind == "sgd"
            else torch.optim.AdamW(groups, lr=1e-2, eps=1e-3)
        )
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda _: 1.0, lambda step: 0.5**step, lambda step: 1 / (step + 1)])

    torch.manual_seed(0)
    module = Net()
    theirs = copy.deepcopy(module)
    optimizer, schedule = grouped(module)
    their_optimizer, their_schedule = grouped(theirs)
    trainer = forebay.torch.Trainer(module, data()[0], loss=nn.CrossEntropyLoss(), optimizer=optimizer)
    for step in range(4):
        trainer.step(*data(step))
        torch_step(theirs, their_optimizer, *data(step), nn.CrossEntropyLoss())
        schedule.step()
        their_schedule.step()
    trainer.write_back()
    close(module.state_dict(), theirs.state_dict())


def test_groups_of_parameters_that_do_not_train() -> None:
    module = nn.ModuleDict({"used": nn.Linear(6, 3), "frozen": nn.Linear(6, 6), "unused": nn.Linear(6, 6)})
    module["frozen"].requires_grad_(False)
    module.forward = lambda x: module["used"](module["frozen"](x))
    groups = [{"params": [*module[name].parameters()], "lr": rate} for name, rate in [("unused", 0.1), ("frozen", 0.2), ("used", 0.3)]]
    theirs = copy.deepcopy(module["used"])
    optimizer = torch.optim.SGD(groups, lr=0.1)
    x, labels = torch.randn(4, 6), torch.arange(4) % 3
    with pytest.warns(UserWarning, match="unused.weight"):
        trainer = forebay.torch.Trainer(module, x, optimizer=optimizer)
    trainer.step(x, labels)
    trainer.write_back()
    torch_step(theirs, torch.optim.SGD(theirs.parameters(), lr=0.3), module["frozen"](x), labels, nn.CrossEntropyLoss())
    close(module["used"].state_dict(), theirs.state_dict())


def test_names_are_the_modules() -> None:
    module = Net()
    x, labels = data()

    def loss(output: Any, target: Any) -> Any:
        return nn.functional.cross_entropy(output, target)

    for inputs, options in [({"picture": x}, {}), (x, {"loss": loss}), ({"picture": x}, {"loss": loss})]:
        trainer = forebay.torch.Trainer(module, inputs, freeze="convolution*", example_labels=labels, **options)
        assert sorted(trainer.parameters()) == sorted(name for name, _ in module.named_parameters() if not name.startswith("convolution"))
        report = trainer.step(inputs, labels, gradients=True)
        assert report.gradients is not None and "head.bias" in report.gradients


def test_losses_with_tensors() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 5))
    theirs = copy.deepcopy(module)
    x, y = torch.randn(16, 8), torch.softmax(torch.randn(16, 5), 1)
    loss = nn.BCEWithLogitsLoss(weight=torch.arange(1.0, 6.0))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with forebay.torch.Trainer(module, x, loss=loss, optimizer=optimizer, example_labels=y) as trainer:
        ours = trainer.step(x, y).loss
    assert ours == pytest.approx(torch_step(theirs, torch.optim.SGD(theirs.parameters(), lr=0.1), x, y, loss), rel=1e-5)
    close(module.state_dict(), theirs.state_dict())
    loss.weight = nn.Parameter(torch.arange(1.0, 6.0))
    with pytest.raises(forebay.InvalidArgument, match="the loss has parameters of its own .weight."):
        forebay.torch.Trainer(module, x, loss=loss, example_labels=y)


def test_evaluation_and_saved_models_use_running_statistics(tmp_path: Any) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(Net(), nn.Dropout(0.5))
    x, labels = data()
    trainer = forebay.torch.Trainer(module, x, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
    for step in range(3):
        trainer.step(*data(step))
    trainer.write_back()
    module.eval()
    with torch.no_grad():
        expected = module(x)
    evaluation = trainer.evaluate(x, labels)
    assert np.allclose(evaluation.logits, expected.numpy(), atol=1e-4)
    assert evaluation.loss == pytest.approx(float(nn.functional.cross_entropy(expected, labels)), abs=1e-4)
    trainer.save(tmp_path / "trained.onnx")
    session = forebay.Session(tmp_path / "trained.onnx")
    assert np.allclose(next(iter(session.run(x).values())), expected.numpy(), atol=1e-4)
    # It can be trained further.
    again = forebay.Trainer(tmp_path / "trained.onnx", batch_size=16)
    assert again.step(x, labels).loss > 0 and any(name.endswith("running_mean") for name in again.state())


class Optional_(nn.Module):  # type: ignore[misc]
    """Has an optional flag and buffers of numbers that do not train."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("mean", torch.full((6,), 0.5))

    def forward(self, x: Any, is_negative: bool = False) -> Any:
        y = self.layer(x - self.mean)
        return -y if is_negative else y


def test_optional_flags_and_buffers() -> None:
    module = Optional_()
    x, labels = torch.randn(4, 6), torch.arange(4) % 3
    trainer = forebay.torch.Trainer(module, x)
    assert sorted(trainer.parameters()) == ["layer.bias", "layer.weight"]
    # The batch size is open, as it is not with the exporter that is tried last.
    expected = nn.functional.cross_entropy(module(torch.cat([x, x])), torch.cat([labels, labels])).item()
    assert trainer.step(torch.cat([x, x]), torch.cat([labels, labels])).loss == pytest.approx(expected, abs=1e-5)


def test_labels_that_are_probabilities() -> None:
    torch.manual_seed(0)
    module = nn.Linear(6, 3)
    x, y = torch.randn(8, 6), torch.softmax(torch.randn(8, 3), 1)
    loss = nn.CrossEntropyLoss(weight=torch.arange(1.0, 4.0), label_smoothing=0.1)
    trainer = forebay.torch.Trainer(module, x, loss=loss, example_labels=y)
    assert trainer.step(x, y).loss == pytest.approx(loss(module(x), y).item(), rel=1e-5)


def test_tensors_of_every_kind_go_in_or_are_refused(digits: str) -> None:
    session = forebay.Session(digits)
    x = torch.randn(4, 1, 8, 8)
    negated = torch.complex(torch.zeros_like(x), x).conj().imag
    assert negated.is_neg()
    assert np.array_equal(session.run(negated)["logits"], session.run((-x).numpy())["logits"])
    for wrong in (x.to("meta"), x.to_sparse()):
        with pytest.raises(forebay.InvalidArgument, match="the elements of a Tensor cannot be read"):
            session.run(wrong)
    for wrong in (None, x.numpy(), 3):
        with pytest.raises(forebay.InvalidArgument, match="example inputs must be"):
            forebay.torch.Trainer(Net(), wrong)
    with forebay.Context():
        halves = torch.randn(3, 4).bfloat16()
        assert torch.equal(torch.from_dlpack(forebay.Tensor(halves)), halves)
