"""Adapters next to those of PEFT: its files, its losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List

import numpy as np
import pytest

import forebay

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")


def network() -> Any:
    torch.manual_seed(0)
    nn = torch.nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(11, 6)
            self.conv = nn.Conv2d(1, 4, 3, padding=1, stride=2)
            self.up = nn.Linear(6, 16)
            self.down = nn.Linear(16 + 4 * 4 * 3, 5)

        def forward(self, ids: Any, image: Any) -> Any:
            words = torch.relu(self.up(self.table(ids))).mean(dim=1)
            return self.down(torch.cat([words, torch.relu(self.conv(image)).flatten(1)], dim=1))

    return Network()


def test_files_and_losses_are_those_of_peft(tmp_path: Path) -> None:
    module = network()
    rng = np.random.default_rng(1)
    batches: List[Any] = [
        (rng.integers(0, 11, (8, 7)), rng.standard_normal((8, 1, 8, 6), dtype=np.float32), rng.integers(0, 5, 8))
        for _ in range(6)
    ]
    path = tmp_path / "model.onnx"
    example = tuple(torch.from_numpy(array) for array in batches[0][:2])
    # What keeps the names of weights.
    how = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False, "dynamo": False}
    torch.onnx.export(module, example, path, input_names=["ids", "image"], opset_version=17, **how)
    lora = forebay.LoRA("*.weight", rank=3, alpha=6, also="*.bias")
    optimizer = forebay.SGD(0.1, momentum=0.9)
    trainer = forebay.Trainer(path, optimizer=optimizer, batch_size=8, lora=lora)
    trainer.save_adapters(tmp_path / "first")
    theirs = peft.PeftModel.from_pretrained(module, tmp_path / "first", is_trainable=True)
    trained = [name for name, parameter in theirs.named_parameters() if parameter.requires_grad and ".bias" not in name]
    assert len([name for name in trained if "lora_" in name]) == 8
    parameters = [parameter for parameter in theirs.parameters() if parameter.requires_grad]
    sgd = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for ids, image, labels in batches:
        loss = torch.nn.functional.cross_entropy(
            theirs(torch.from_numpy(ids), torch.from_numpy(image)), torch.from_numpy(labels)
        )
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        assert trainer.step({"ids": ids, "image": image}, labels).loss == pytest.approx(float(loss), rel=1e-4)
    # Back again: what was learned here is what PEFT reads.
    trainer.save_adapters(tmp_path / "last")
    ids, image, labels = batches[0]
    again = peft.PeftModel.from_pretrained(network(), tmp_path / "last").eval()
    expected = again(torch.from_numpy(ids), torch.from_numpy(image)).detach().numpy()
    assert np.allclose(trainer.evaluate({"ids": ids, "image": image}, labels).logits, expected, atol=1e-4)
