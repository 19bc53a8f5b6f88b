"""Optimizers of PyTorch: what they maximize, how their parameter groups differ, and parameters that begin to train later."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, Tuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="there is no PyTorch")
from torch import nn  # noqa: E402

import forebay  # noqa: E402
import forebay.torch  # noqa: E402

BATCHES = [(torch.randn(8, 6, generator=torch.Generator().manual_seed(seed)), (torch.arange(8) * (seed + 1)) % 3) for seed in range(8)]
X, LABELS = BATCHES[0]
LOSS = nn.CrossEntropyLoss()
OPTIMIZERS: Dict[str, Tuple[Callable[..., Any], Dict[str, Any], Dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}, {"momentum": 0.5}),
    "damped sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "dampening": 0.5}, {"momentum": 0.5, "dampening": 0.1}),
    "adam": (torch.optim.Adam, {"lr": 1e-2, "eps": 1e-3}, {"betas": (0.5, 0.9), "eps": 1e-2}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-2, "eps": 1e-3}, {"betas": (0.8, 0.99), "weight_decay": 0.5}),
    "amsgrad": (torch.optim.Adam, {"lr": 1e-2, "eps": 1e-3, "amsgrad": True}, {"betas": (0.5, 0.9)}),
    "nadam": (torch.optim.NAdam, {"lr": 1e-2, "eps": 1e-3}, {"betas": (0.5, 0.9), "momentum_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 1e-2, "eps": 1e-2}, {"alpha": 0.5, "eps": 0.1}),
    "adagrad": (torch.optim.Adagrad, {"lr": 1e-2, "eps": 1e-2, "lr_decay": 0.1}, {"lr_decay": 0.5}),
}


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def torch_step(module: Any, optimizer: Any, number: int) -> float:
    optimizer.zero_grad()
    loss = LOSS(module(BATCHES[number][0]), BATCHES[number][1])
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def close(ours: Any, theirs: Any) -> None:
    for (name, one), other in zip(ours.state_dict().items(), theirs.state_dict().values()):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5), (name, one, other)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_loss_rises(kind: str) -> None:
    make, settings, _ = OPTIMIZERS[kind]
    module = net()
    theirs = copy.deepcopy(module)
    optimizer, their_optimizer = (make(each.parameters(), maximize=True, **settings) for each in (module, theirs))
    trainer = forebay.torch.Trainer(module, X, LOSS, optimizer, clip_global_norm=10.0)
    for number in range(3):
        assert trainer.step(*BATCHES[number]).loss == pytest.approx(torch_step(theirs, their_optimizer, number), rel=1e-4)
    # Gradients are those of the loss.
    found = trainer.step(*BATCHES[3], gradients=True).gradients
    torch_step(theirs, their_optimizer, 3)
    trainer.write_back()
    close(module, theirs)
    assert found is not None
    for name, parameter in theirs.named_parameters():
        np.testing.assert_allclose(found[name], parameter.grad, rtol=1e-3, atol=1e-5)
    optimizer.param_groups[0]["maximize"] = False
    with pytest.raises(forebay.InvalidArgument, match="the optimizer maximizes, unlike when the trainer was made"):
        trainer.step(X, LABELS)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_groups_differ_in_all_numbers(kind: str) -> None:
    make, settings, others = OPTIMIZERS[kind]
    module = net()
    theirs = copy.deepcopy(module)

    def grouped(each: Any) -> Any:
        return make([{"params": [*each[:2].parameters()]}, {"params": [*each[2].parameters()], **others}, {"params": [*each[4].parameters()], "lr": 0.1}], **settings)

    optimizer, their_optimizer = grouped(module), grouped(theirs)
    trainer = forebay.torch.Trainer(module, X, LOSS, optimizer)
    for number in range(4):
        if number == 2:
            # Schedules of the learning rate can change the momentum as well.
            for each in (optimizer, their_optimizer):
                each.param_groups[1]["lr"] = 0.02
                each.param_groups[2]["weight_decay"] = 0.1
                if kind in ("sgd", "adam"):
                    each.param_groups[2].update({"momentum": 0.7} if kind == "sgd" else {"betas": (0.7, 0.99)})
        trainer.step(*BATCHES[number])
        torch_step(theirs, their_optimizer, number)
    trainer.write_back()
    close(module, theirs)
    # PyTorch goes on.
    torch_step(module, optimizer, 4)
    torch_step(theirs, their_optimizer, 4)
    close(module, theirs)
    if kind != "nadam":
        made = trainer.make_optimizer()
        assert [group["lr"] for group in made.param_groups] == [group["lr"] for group in optimizer.param_groups]


@pytest.mark.parametrize("kind", ["adam", "adamw", "amsgrad", "nadam", "adagrad", "damped sgd", "rmsprop"])
def test_parameters_begin_to_train_later(kind: str) -> None:
    make, settings, _ = OPTIMIZERS[kind]
    module = net()
    theirs = copy.deepcopy(module)
    optimizer, their_optimizer = (make(each.parameters(), **settings) for each in (module, theirs))
    for stage, trains in enumerate([(4,), (2, 4), (0, 2, 4), (0, 4), (0, 2, 4)]):
        for each in (module, theirs):
            each.requires_grad_(False)
            for layer in trains:
                each[layer].requires_grad_(True)
        trainer = forebay.torch.Trainer(module, X, LOSS, optimizer)
        for number in (stage, stage + 1):
            trainer.step(*BATCHES[number])
            torch_step(theirs, their_optimizer, number)
        trainer.write_back()
        close(module, theirs)
    if kind not in ("rmsprop", "damped sgd"):
        for one, other in zip(module.parameters(), theirs.parameters()):
            assert float(optimizer.state[one]["step"]) == float(their_optimizer.state[other]["step"])
    # One of them begins again.
    del optimizer.state[module[0].weight]
    if kind != "rmsprop":
        with pytest.raises(forebay.InvalidArgument, match="'0.weight' differs from those with other parameters in another way"):
            trainer.step(X, LABELS)


def test_groups_of_a_trainer_can_have_optimizers_of_their_own() -> None:
    optimizer = forebay.Adam(1e-2)
    group = forebay.ParameterGroup("0.*", optimizer=forebay.Adam(2e-2, beta1=0.5), updates_before=1)
    assert group.updates_before == 1
    with pytest.raises(TypeError, match="updates_before of ParameterGroup"):
        forebay.Trainer(exported(), optimizer=optimizer, groups=[forebay.ParameterGroup("0.*", updates_before=0.5)])  # type: ignore[arg-type]
    with pytest.raises(forebay.Error, match="needs other state"):
        forebay.Trainer(exported(), optimizer=optimizer, groups=[forebay.ParameterGroup("0.*", optimizer=forebay.SGD(0.1))])
    trainer = forebay.Trainer(exported(), optimizer=optimizer, groups=[group], schedule=forebay.Schedule("step", steps=1, gamma=0.5))
    before = trainer.parameters()
    trainer.step(X, LABELS)
    after = trainer.parameters()
    # The first step of Adam is as large as its learning rate.
    assert np.abs(after["4.weight"] - before["4.weight"]).max() == pytest.approx(1e-2, rel=1e-3)
    trainer.set_values({}, step_count=1)
    trainer.step(X, LABELS)
    assert trainer.step_count == 2


def exported() -> str:
    import tempfile

    path = tempfile.mkdtemp() + "/net.onnx"
    torch.onnx.export(net(), (X,), path, dynamo=False)
    return path


def test_groups_that_need_other_state_are_refused() -> None:
    module = net()
    first, second = [*module[0].parameters()], [*module[4].parameters()]
    for optimizer, words in [
        (torch.optim.SGD([{"params": first}, {"params": second, "momentum": 0.9}], lr=0.1), "parameter group 1 .* needs other state"),
        (torch.optim.Adam([{"params": first}, {"params": second, "amsgrad": True}]), "parameter group 1 .* needs other state"),
        (torch.optim.SGD([{"params": first}, {"params": second, "maximize": True}], lr=0.1), "some parameter groups .* maximize=True"),
    ]:
        with pytest.raises(forebay.InvalidArgument, match=words):
            forebay.torch.Trainer(module, X, LOSS, optimizer)
    optimizer = torch.optim.SGD([{"params": first}], lr=0.1)
    trainer = forebay.torch.Trainer(module, X, LOSS, optimizer)
    optimizer.add_param_group({"params": second})
    with pytest.raises(forebay.InvalidArgument, match="the optimizer has 2 parameter groups instead of 1"):
        trainer.step(X, LABELS)
