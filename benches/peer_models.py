"""The golden networks in PyTorch, for comparison with Forebay on the same data."""
import gzip
import struct

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class UNet3d(nn.Module):
    """3-D U-Net: 4 levels, two 3x3x3 Conv-BN-ReLU each (8, 16, 32, 64 channels)."""

    def __init__(self, c=8, classes=3):
        super().__init__()

        def block(i, o):
            return nn.Sequential(
                nn.Conv3d(i, o, 3, padding=1, bias=False), nn.BatchNorm3d(o), nn.ReLU(),
                nn.Conv3d(o, o, 3, padding=1, bias=False), nn.BatchNorm3d(o), nn.ReLU())

        self.enc1, self.enc2, self.enc3, self.enc4 = block(1, c), block(c, 2 * c), block(2 * c, 4 * c), block(4 * c, 8 * c)
        self.up3, self.up2, self.up1 = (nn.ConvTranspose3d(2 * k, k, 2, stride=2) for k in (4 * c, 2 * c, c))
        self.dec3, self.dec2, self.dec1 = block(8 * c, 4 * c), block(4 * c, 2 * c), block(2 * c, c)
        self.head = nn.Conv3d(c, classes, 1)
        self.pool = nn.MaxPool3d(2)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(self.pool(a))
        c = self.enc3(self.pool(b))
        x = self.enc4(self.pool(c))
        x = self.dec3(torch.cat([self.up3(x), c], 1))
        x = self.dec2(torch.cat([self.up2(x), b], 1))
        x = self.dec1(torch.cat([self.up1(x), a], 1))
        return self.head(x)


class BasicBlock(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        project = stride != 1 or i != o
        self.short = (nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o)) if project
                      else nn.Identity())

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.short(x))


class ResNet20(nn.Module):
    """CIFAR-style ResNet-20 with projection shortcuts."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        sizes = [(16, 16, 1)] * 3 + [(16, 32, 2)] + [(32, 32, 1)] * 2 + [(32, 64, 2)] + [(64, 64, 1)] * 2
        self.layers = nn.Sequential(*[BasicBlock(i, o, stride) for i, o, stride in sizes])
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = self.layers(F.relu(self.bn(self.conv(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


MODELS = {"unet3d": UNet3d, "resnet20": ResNet20}


def read_nifti(path):
    """The array of a little-endian NIfTI-1 file without scaling."""
    raw = gzip.open(path).read()
    sizes = struct.unpack("<8h", raw[40:56])
    kind = {2: "<u1", 16: "<f4"}[struct.unpack("<h", raw[70:72])[0]]
    offset = int(struct.unpack("<f", raw[108:112])[0])
    return np.frombuffer(raw, kind, int(np.prod(sizes[1:4])), offset).reshape(sizes[1:4], order="F")


def fit(volume, shape):
    """Crops around the center or pads with zeros, as Forebay does."""
    for axis, m in enumerate(shape):
        n = volume.shape[axis]
        if n >= m:
            volume = volume.take(range((n - m) // 2, (n - m) // 2 + m), axis)
        else:
            width = [(0, 0)] * volume.ndim
            width[axis] = ((m - n) // 2, m - n - (m - n) // 2)
            volume = np.pad(volume, width)
    return volume
