"""The network of `volumes.py` in PyTorch, from the same initial weights: random patches for training, and tiles for evaluation."""
import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn
from torch.nn import functional

import volumes


class Block(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv3d(channels, out, 3, padding=1), nn.Conv3d(out, out, 3, padding=1)

    def forward(self, x):
        return functional.relu(self.conv2(functional.relu(self.conv1(x))))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        before, self.levels = 1, len(volumes.CHANNELS)
        for level, channels in enumerate(volumes.CHANNELS):
            setattr(self, f"down{level}", Block(before, channels))
            before = channels
        for level in reversed(range(self.levels - 1)):
            channels = volumes.CHANNELS[level]
            setattr(self, f"grow{level}", nn.ConvTranspose3d(before, channels, 2, stride=2))
            setattr(self, f"up{level}", Block(2 * channels, channels))
            before = channels
        self.logits = nn.Conv3d(before, volumes.CLASSES, 1)

    def forward(self, x):
        kept = []
        for level in range(self.levels):
            x = getattr(self, f"down{level}")(x)
            if level + 1 < self.levels:
                kept.append(x)
                x = functional.max_pool3d(x, 2)
        for level in reversed(range(self.levels - 1)):
            x = getattr(self, f"up{level}")(torch.cat([getattr(self, f"grow{level}")(x), kept[level]], 1))
        return self.logits(x)


def loss_of(logits, labels):
    """MONAI's DiceCELoss without the background, which is what `--loss dice-ce --no-background` means."""
    shares = logits.softmax(1)[:, 1:]
    wanted = functional.one_hot(labels, volumes.CLASSES).movedim(-1, 1)[:, 1:].float()
    places = (2, 3, 4)
    dice = 1 - (2 * (shares * wanted).sum(places) + 1e-5) / (shares.sum(places) + wanted.sum(places) + 1e-5)
    return dice.mean() + functional.cross_entropy(logits, labels)


def dice(run, steps):
    """The mean Dice of both kinds after this many steps on random patches."""
    network = UNet()
    weights = {tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy()) for tensor in onnx.load(run.path("unet.onnx")).graph.initializer}
    network.load_state_dict(weights)
    optimizer = torch.optim.Adam(network.parameters(), lr=volumes.RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    samples, random = [], np.random.default_rng(1)
    for _ in range(volumes.counts(run)[0]):
        image, labels = volumes.volume(random)
        samples.append((torch.from_numpy((image - image.mean()) / image.std()), torch.from_numpy(labels.astype(np.int64))))
    for step in range(steps):
        images, maps = [], []
        for number in range(step * volumes.BATCH, (step + 1) * volumes.BATCH):
            image, labels = samples[number % len(samples)]
            corner = [int(random.integers(0, volumes.SIZE - side + 1)) for side in volumes.PATCH]
            at = tuple(slice(start, start + side) for start, side in zip(corner, volumes.PATCH))
            images.append(image[at][None])
            maps.append(labels[at])
        optimizer.zero_grad()
        loss_of(network(torch.stack(images)), torch.stack(maps)).backward()
        optimizer.step()
        schedule.step()
    network.eval()
    with torch.no_grad():
        return volumes.mean_dice(run, lambda image: network(torch.from_numpy(image)).numpy(), volumes.PATCH)
