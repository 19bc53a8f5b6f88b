"""Makes the files of this folder with the libraries that people write such files with: what `forebay-data` reads is compared with what these
libraries say (`expected.json`).

    python3 -m pip install tokenizers==0.23.3 pyarrow==26.0.1 soundfile==0.14.0 pynrrd==1.1.3 numpy pillow
    python3 make.py
"""

import io
import json
import os

import nrrd
import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import soundfile
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

TEXT = """A forebay is the small pool in front of a turbine.
It is filled from a much larger reservoir; what the turbine takes, the pool has.

  - Où est la bibliothèque ? 図書館はどこですか。
  - 12,345.67 litres per second, don't they?

	The end.
"""

expected = {}


def text():
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=320, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet))
    bpe.save("bpe.json", pretty=False)
    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer()
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.train_from_iterator([TEXT], trainers.WordPieceTrainer(vocab_size=120, special_tokens=["[UNK]", "[SEP]", "[PAD]"]))
    # What a file says of single texts does not change packed ones.
    words.enable_truncation(4)
    words.enable_padding(length=8)
    words.save("wordpiece.json", pretty=False)
    words.no_truncation()
    words.no_padding()
    open("text.txt", "w", encoding="utf-8").write(TEXT)
    lines = [line for line in TEXT.split("\n") if line]
    with open("text.jsonl", "w", encoding="utf-8") as file:
        for number, line in enumerate(lines):
            print(json.dumps({"id": number, "text": line}, ensure_ascii=number % 2 == 0), file=file)
    for name, tokenizer in [("bpe", bpe), ("wordpiece", words)]:
        whole = tokenizer.encode(TEXT, add_special_tokens=False).ids
        assert tokenizer.encode(TEXT * 200, add_special_tokens=False).ids == whole * 200
        documents = [tokenizer.encode(line, add_special_tokens=False).ids for line in lines]
        expected[name] = {"vocabulary": tokenizer.get_vocab_size(), "text": whole, "lines": documents}


def parquet():
    random = np.random.default_rng(5)
    rows = 300
    x = random.normal(size=(rows, 2, 3)).astype(np.float32)
    small = random.integers(-128, 128, rows).astype(np.int8)
    half = random.normal(size=rows).astype(np.float16)
    wide = random.integers(-(2**40), 2**40, rows)
    label = random.integers(0, 3, rows)
    words = np.array(["dog", "cat", "eel"])[label]
    columns = {
        "x": pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 6),
        "ragged": pa.array([list(range(row % 3)) for row in range(rows)], pa.list_(pa.int32())),
        "small": pa.array(small),
        "half": pa.array(half),
        "wide": pa.array(wide),
        "flag": pa.array(label == 1),
        "gaps": pa.array([None if row == 200 else row for row in range(rows)], pa.int64()),
        "label": pa.array(label),
        "word": pa.array(words.tolist()),
    }
    table = pa.table(columns)
    for name, options in [
        ("snappy", {"compression": "snappy"}),
        ("zstd", {"compression": "zstd", "data_page_version": "2.0", "write_page_checksum": True}),
        ("gzip", {"compression": "gzip", "use_dictionary": False}),
        ("plain", {"compression": "none", "write_page_index": True}),
    ]:
        pq.write_table(table, f"numbers_{name}.parquet", row_group_size=128, data_page_size=256, **options)
    pq.write_table(table.select(["small", "half", "wide", "word"]).rename_columns(["a", "b", "c", "label"]), "table.parquet")
    images = []
    for grey in (51, 102, 204):
        file = io.BytesIO()
        Image.fromarray(np.full((4, 6), grey, np.uint8)).save(file, "png")
        images.append({"bytes": file.getvalue(), "path": f"{grey}.png"})
    pq.write_table(pa.table({"image": pa.array(images), "label": pa.array([2, 0, 1])}), "images.parquet")
    lines = [line for line in TEXT.split("\n") if line]
    pq.write_table(pa.table({"text": pa.array(lines)}), "text.parquet", row_group_size=2)
    expected["parquet"] = {
        "x": x.reshape(-1).tolist(),
        "small": small.tolist(),
        "half": half.astype(np.float32).tolist(),
        "wide": wide.tolist(),
        "flag": (label == 1).tolist(),
        "label": label.tolist(),
        "word": np.searchsorted(["cat", "dog", "eel"], words).tolist(),
    }


def arrow():
    """The same rows as in Parquet, with columns of other kinds between them; some of these are not read."""
    table = pq.read_table("numbers_plain.parquet")
    rows, label = len(table), table["label"].to_pylist()
    words = table["word"].to_pylist()
    x = np.array(table["x"].to_pylist(), np.float32).reshape(rows, 2, 3)
    long = [f"{word}, which is number {number}" if number % 2 else word for number, word in enumerate(words)]
    options = {"label": pa.array(label), "word": pa.array(words).dictionary_encode(), "small": table["small"], "flag": table["flag"]}
    columns = {
        "when": pa.array([row * 10**6 for row in range(rows)], pa.timestamp("us")),
        "x": table["x"],
        "price": pa.array([row for row in range(rows)], pa.decimal128(9, 2)),
        "nested": pa.array(x.tolist(), pa.list_(pa.large_list(pa.float32()))),
        "nothing": pa.nulls(rows),
        "either": pa.UnionArray.from_dense(pa.array([0] * rows, pa.int8()), pa.array(range(rows), pa.int32()), [pa.array(label)]),
        "view": pa.array(long, pa.string_view()),
        "pairs": pa.array([[("a", row)] for row in range(rows)], pa.map_(pa.string(), pa.int64())),
        "inside": pa.array([{"half": value, "big": word} for value, word in zip(table["half"].to_pylist(), words)],
                           pa.struct({"half": pa.float16(), "big": pa.large_string()})),
        "ragged": table["ragged"],
        "gaps": table["gaps"],
        "wide": table["wide"],
        "index": pa.DictionaryArray.from_arrays(pa.array(label, pa.uint8()), pa.array([0.5, 1.5, 2.5], pa.float32())),
        **options,
    }
    whole = pa.table(columns)
    with pa.ipc.new_file("numbers_file.arrow", whole.schema) as file:
        file.write_table(whole, max_chunksize=128)
    some = whole.select(["when", "x", "view", "wide", "flag", "small", "label", "word"])
    feather.write_feather(some, "numbers_lz4.feather", compression="lz4", chunksize=128)
    with pa.ipc.new_stream("numbers_zstd.arrow", some.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(some, max_chunksize=128)
    large = pa.array([{"large": word} for word in words], pa.struct({"large": pa.large_string()}))
    for name, label_name, labels in [("words_view.arrow", "y", columns["view"]), ("words_large.arrow", "labels", large)]:
        labelled = pa.table({"wide": table["wide"], label_name: labels})
        with pa.ipc.new_file(name, labelled.schema) as file:
            file.write_table(labelled, max_chunksize=128)
    # The dictionary grows from one batch to the next, and then is another one.
    schema = pa.schema({"wide": pa.int64(), "label": pa.dictionary(pa.int8(), pa.string())})
    with pa.ipc.new_stream("words.arrows", schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)) as stream:
        for first, known in ((0, ["eel"]), (2, ["eel", "cat"]), (4, ["eel", "cat", "dog"]), (6, ["dog", "cat"])):
            picked = [known[number % len(known)] for number in (first, first + 1)]
            indices = pa.array([known.index(word) for word in picked], pa.int8())
            coded = pa.DictionaryArray.from_arrays(indices, pa.array(known))
            stream.write_batch(pa.record_batch([pa.array([first, first + 1]), coded], schema=schema))
    images = pq.read_table("images.parquet")
    with pa.ipc.new_stream("images.arrow", images.schema) as stream:
        stream.write_table(images)
    text = pq.read_table("text.parquet")
    with pa.ipc.new_file("text.arrow", text.schema) as file:
        file.write_table(text, max_chunksize=2)


def volumes():
    random = np.random.default_rng(6)
    image = random.integers(-1000, 1000, (3, 4, 5)).astype(np.int16)
    labels = random.integers(0, 3, (3, 4, 5)).astype(np.uint8)
    os.makedirs("volumes", exist_ok=True)
    nrrd.write("volumes/a_image.nrrd", image, {"encoding": "gzip", "space": "left-posterior-superior", "space directions": np.eye(3)})
    nrrd.write("volumes/a_labels.nrrd", labels, {"encoding": "raw"})
    nrrd.write("volumes/b_image.nhdr", image.astype(">f4"), {"encoding": "raw", "endian": "big"})
    nrrd.write("volumes/b_labels.nhdr", labels, {"encoding": "gzip"})
    back, _ = nrrd.read("volumes/b_image.nhdr")
    assert (back == image).all()
    expected["volumes"] = {"image": image.reshape(-1).tolist(), "labels": labels.reshape(-1).tolist()}


def sounds():
    random = np.random.default_rng(7)
    expected["sounds"] = {}
    for name, subtype, channels in [
        ("high/a.wav", "PCM_16", 1),
        ("high/b.wav", "PCM_24", 2),
        ("high/c.wav", "FLOAT", 1),
        ("high/d.wav", "PCM_U8", 1),
        ("low/a.flac", "PCM_16", 2),
        ("low/b.flac", "PCM_24", 1),
    ]:
        os.makedirs("sounds/" + name.split("/")[0], exist_ok=True)
        time = np.arange(200)[:, None] / 8000
        wave = 0.5 * np.sin(2 * np.pi * 440 * time) + 0.01 * random.normal(size=(200, channels))
        soundfile.write("sounds/" + name, wave, 8000, subtype=subtype)
        found, _ = soundfile.read("sounds/" + name, dtype="float32", always_2d=True)
        expected["sounds"][name] = found.T.tolist()


text()
parquet()
arrow()
volumes()
sounds()
json.dump(expected, open("expected.json", "w"))
