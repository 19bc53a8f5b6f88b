"""The U-Net of examples/brain and its data at full size: twice as much along each axis, 192 x 224 x 192.

    python3 benches/full_unet.py FOLDER

Writes FOLDER/unet3d.onnx, which has the same weights, and the 2 mm volumes with each voxel replaced by eight: the cost of a step
depends on sizes, and these are real ones. It needs only Python.
"""

import argparse
import gzip
import os
import struct

BRAIN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples", "brain")
# The path from an ONNX model to the dimensions of its inputs and outputs, as field numbers: graph, input or output, type, tensor
# type, shape, dimension. The rest of the file is unchanged.
DIMENSIONS = [{7}, {11, 12}, {2}, {1}, {2}, {1}]
HEADER_BYTES = 352


def varint(data, at):
    """A number in a protocol buffer, and where it ends."""
    number, shift = 0, 0
    while True:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return number, at


def encoded(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out + bytes([number]))


def enlarged(message, way):
    """The message with the dimensions at the end of the path, except batch and channels, doubled."""
    out, at, dimension = bytearray(), 0, 0
    while at < len(message):
        start = at
        key, at = varint(message, at)
        if key & 7 != 2:
            if key & 7 != 0:
                raise SystemExit("fields of a fixed size are not expected here")
            number, at = varint(message, at)
            # A dimension's size: the end of the path.
            out += encoded(key) + encoded(number if way else 2 * number)
            continue
        size, at = varint(message, at)
        inner, at = message[at:at + size], at + size
        if not way or key >> 3 not in way[0]:
            out += message[start:at]
            continue
        dimension += 1
        if len(way) > 1 or dimension > 2:
            inner = enlarged(inner, way[1:])
        out += encoded(key) + encoded(len(inner)) + inner
    return bytes(out)


def doubled(name):
    """A NIfTI-1 file with every voxel repeated twice along each axis."""
    with gzip.open(os.path.join(BRAIN, name)) as file:
        raw = file.read()
    sizes = struct.unpack("<3h", raw[42:48])
    voxel_bytes = struct.unpack("<h", raw[72:74])[0] // 8
    header = raw[:42] + struct.pack("<3h", *(2 * size for size in sizes)) + raw[48:HEADER_BYTES]
    row, plane = sizes[0] * voxel_bytes, sizes[0] * sizes[1] * voxel_bytes
    out = bytearray(header)
    for start in range(HEADER_BYTES, HEADER_BYTES + sizes[2] * plane, plane):
        twice = bytearray()
        for line in range(start, start + plane, row):
            twice += 2 * b"".join(2 * raw[at:at + voxel_bytes] for at in range(line, line + row, voxel_bytes))
        out += 2 * twice
    return bytes(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER")
    folder = parser.parse_args().folder
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(BRAIN, "unet3d.onnx"), "rb") as file:
        files = {"unet3d.onnx": enlarged(file.read(), DIMENSIONS)}
    files.update({f"{kind}_1mm.nii": doubled(f"{kind}_2mm.nii.gz") for kind in ("t1", "labels")})
    for name, data in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)


if __name__ == "__main__":
    main()
