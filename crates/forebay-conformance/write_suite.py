#!/usr/bin/env python3
"""Writes the node cases of the installed `onnx` package as a suite for `cargo xtask conformance`.

    python3 crates/forebay-conformance/write_suite.py FOLDER      # needs: pip install onnx ml_dtypes

The package defines its cases as Python functions; a wheel need not hold their files. FOLDER gets a folder for each case, with `model.onnx`
and `test_data_set_0/input_I.pb`, `output_I.pb`.
"""
import argparse
import os
import shutil
import warnings

import onnx
from onnx import numpy_helper

WRITERS = {"map_type": numpy_helper.from_dict, "sequence_type": numpy_helper.from_list, "optional_type": numpy_helper.from_optional,
           "tensor_type": numpy_helper.from_array}


def serialized(value, declared):
    """The bytes of a value, by the type that the model declares."""
    if isinstance(value, onnx.TensorProto):
        return value.SerializeToString()
    return WRITERS[declared.type.WhichOneof("value")](value, declared.name).SerializeToString()


def write(case, folder):
    """Writes a case; values without a declaration are left out, as some functions declare fewer outputs than they have."""
    os.makedirs(folder)
    with open(os.path.join(folder, "model.onnx"), "wb") as file:
        file.write(case.model.SerializeToString())
    for index, values in enumerate(case.data_sets):
        part = os.path.join(folder, f"test_data_set_{index}")
        os.mkdir(part)
        for kind, given, declared in zip(("input", "output"), values, (case.model.graph.input, case.model.graph.output), strict=True):
            for position, (value, info) in enumerate(zip(given, declared)):
                with open(os.path.join(part, f"{kind}_{position}.pb"), "wb") as file:
                    file.write(serialized(value, info))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="is replaced")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    from onnx.backend.test.loader import load_model_tests  # warns while it computes the cases
    cases = load_model_tests(kind="node")
    shutil.rmtree(arguments.folder, ignore_errors=True)
    for case in cases:
        write(case, os.path.join(arguments.folder, case.name))
    print(f"{len(cases)} node cases of onnx {onnx.__version__}")


if __name__ == "__main__":
    main()
