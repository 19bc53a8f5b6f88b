"""Makes the files of this folder with the libraries that people write such files with: what `forebay-data` reads is compared with what these
libraries say (`expected.json`).

    python3 -m pip install tokenizers==0.23.3 pyarrow==26.0.1 soundfile==0.14.0 pynrrd==1.1.3 numpy
    python3 make.py
"""

import json
import wave

import nrrd
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile
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


text()
json.dump(expected, open("expected.json", "w"))
