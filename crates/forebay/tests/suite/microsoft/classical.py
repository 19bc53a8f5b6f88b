"""Models of one operator of ai.onnx.ml each, with random inputs and what ONNX Runtime makes of them."""

import os
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

FOLDER = sys.argv[1]
RANDOM = np.random.default_rng(1)
TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "int32": TensorProto.INT32, "int64": TensorProto.INT64}


def case(name, operator, inputs, kinds=("float32",), version=3, **attributes):
    """Writes a case; `kinds` are the types of the outputs."""
    names, outputs = [f"x{i}" for i in range(len(inputs))], [f"y{i}" for i in range(len(kinds))]
    infos = [helper.make_tensor_value_info(n, TYPES[str(v.dtype)], v.shape) for n, v in zip(names, inputs)]
    results = [helper.make_tensor_value_info(n, TYPES[k], None) for n, k in zip(outputs, kinds)]
    node = helper.make_node(operator, names, outputs, domain="ai.onnx.ml", **attributes)
    graph = helper.make_graph([node], name, infos, results)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    fed = dict(zip(names, inputs))
    found = session.run(outputs, fed)
    path = os.path.join(FOLDER, name)
    os.makedirs(path)
    onnx.save(model, os.path.join(path, "model.onnx"))
    np.savez(os.path.join(path, "inputs.npz"), **fed)
    np.savez(os.path.join(path, "outputs.npz"), **dict(zip(outputs, found)))
    print(name)


def values(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def reals(*shape):
    return values(*shape).ravel().tolist()


x = values(9, 4)
case("scaler", "Scaler", [x], offset=reals(4), scale=reals(4))
case("scaler_one", "Scaler", [x.astype(np.float64)], offset=[0.5], scale=[2.0])
case("scaler_integers", "Scaler", [(x * 5).astype(np.int64)], offset=reals(4), scale=reals(4))
for norm in ("MAX", "L1", "L2"):
    case(f"normalizer_{norm}", "Normalizer", [np.concatenate([x, np.zeros((1, 4), np.float32)])], norm=norm)
case("binarizer", "Binarizer", [x], threshold=0.25)
holes = x.copy()
holes[2:5, 1:3] = np.nan
case("imputer", "Imputer", [holes], imputed_value_floats=reals(4), replaced_value_float=float("nan"))
case("imputer_one", "Imputer", [np.where(x > 0, x, 7).astype(np.float32)], imputed_value_floats=[2.5], replaced_value_float=7.0)
case("imputer_integers", "Imputer", [RANDOM.integers(0, 3, (9, 4))], ("int64",), imputed_value_int64s=[8], replaced_value_int64=1)
case("extractor", "ArrayFeatureExtractor", [x, np.array([3, 0, 3])])
case("extractor_vector", "ArrayFeatureExtractor", [x[0], np.array([2])])
case("vectorizer", "FeatureVectorizer", [x, values(9, 2)], inputdimensions=[4, 2])
keys = RANDOM.integers(0, 6, (5, 2))
case("label_integers", "LabelEncoder", [keys], ("int64",), keys_int64s=[0, 3, 5, 3], values_int64s=[9, 8, 7, 6], default_int64=4)
case("label_floats", "LabelEncoder", [keys], ("float32",), keys_int64s=[0, 3, 5], values_floats=[0.5, 1.5, 2.5])
case("label_keys", "LabelEncoder", [np.array([0.5, np.nan, 2], np.float32)], ("int64",), keys_floats=[float("nan"), 0.5], values_int64s=[1, 2])
case("label_tensors", "LabelEncoder", [np.array([0.5, np.nan, 2], np.float32)], ("int64",), 4, keys_tensor=numpy_helper.from_array(np.array([np.nan, 0.5], np.float32)),
     values_tensor=numpy_helper.from_array(np.array([1, 2])), default_tensor=numpy_helper.from_array(np.array([7])))
case("categories", "OneHotEncoder", [keys], cats_int64s=[4, 0, 2], zeros=1)
case("categories_real", "OneHotEncoder", [keys.astype(np.float32)], cats_int64s=[0, 1, 2, 3, 4, 5], zeros=0)

TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
for transform in TRANSFORMS:
    case(f"linear_{transform}", "LinearRegressor", [np.float32(0.1) * x], coefficients=(0.1 * values(12)).tolist(),
         intercepts=[0.3, 0.5, 0.6], targets=3, post_transform=transform)
case("linear_one", "LinearRegressor", [x], coefficients=reals(4))
case("classes", "LinearClassifier", [x], ("int64", "float32"), coefficients=reals(12), intercepts=reals(3), classlabels_ints=[5, 3, 9], post_transform="SOFTMAX")
for transform in ("NONE", "LOGISTIC"):
    case(f"classes_two_{transform}", "LinearClassifier", [x], ("int64", "float32"), coefficients=reals(4), intercepts=[0.1], classlabels_ints=[5, 3], post_transform=transform)

MACHINES = {"LINEAR": [0.0, 0.0, 0.0], "POLY": [0.3, 0.2, 3.0], "RBF": [0.4, 0.0, 0.0], "SIGMOID": [0.3, 0.1, 0.0]}
for kind, parameters in MACHINES.items():
    machine = {"kernel_type": kind, "kernel_params": parameters, "support_vectors": reals(7, 4)}
    case(f"vectors_{kind}", "SVMRegressor", [x], coefficients=reals(7), rho=[0.2], n_supports=7, **machine)
    for classes, sizes, labels in ((2, [3, 4], [5, 3]), (3, [2, 4, 1], [5, 3, 9])):
        case(f"vectors_{kind}_{classes}", "SVMClassifier", [x], ("int64", "float32"), coefficients=reals(7 * (classes - 1)),
             rho=reals(classes * (classes - 1) // 2), vectors_per_class=sizes, classlabels_ints=labels, **machine)
case("one_class", "SVMRegressor", [x], coefficients=reals(7), rho=[0.2], n_supports=7, one_class=1, **machine)
far = {"kernel_type": "RBF", "kernel_params": [0.4, 0.0, 0.0], "support_vectors": (values(7, 4) + 3000).ravel().tolist()}
case("vectors_far", "SVMRegressor", [x + np.float32(3000)], coefficients=reals(7), rho=[0.2], n_supports=7, **far)


def trees(kind, count, targets, modes, missing=False, depth=4, scale=1.0, shift=0.0):
    """Random trees that are full down to `depth`, as attributes; each leaf has a value for one or all of the targets."""
    inner, size = 2**depth - 1, 2 ** (depth + 1) - 1
    lists = {f"nodes_{n}": [] for n in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids", "missing_value_tracks_true")}
    own = {f"{kind}_{n}": [] for n in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(count):
        for node in range(size):
            is_branch = node < inner
            row = [tree, node, int(RANDOM.integers(4)) if is_branch else 0, round(float(RANDOM.standard_normal()), 1) if is_branch else 0.0,
                   str(RANDOM.choice(modes)) if is_branch else "LEAF", 2 * node + 1 if is_branch else 0, 2 * node + 2 if is_branch else 0,
                   int(missing and RANDOM.integers(2))]
            for values_of, value in zip(lists.values(), row):
                values_of.append(value)
            if not is_branch:
                for target in targets:
                    for values_of, value in zip(own.values(), (tree, node, target, float(RANDOM.standard_normal()) * scale + shift)):
                        values_of.append(value)
    return {**lists, **own}


rounded = np.round(x, 1)
rounded[1, 2] = rounded[4, 0] = np.nan
ALL = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
for mode in ALL:
    case(f"trees_{mode}", "TreeEnsembleRegressor", [rounded], n_targets=1, **trees("target", 5, [0], [mode]))
for name, missing in (("mixed", False), ("missing", True)):
    case(f"trees_{name}", "TreeEnsembleRegressor", [rounded], n_targets=2, base_values=[0.5, 1.0], **trees("target", 5, [0, 1], ALL, missing))
case("trees_double", "TreeEnsembleRegressor", [rounded.astype(np.float64)], n_targets=1, **trees("target", 5, [0], ALL, True))
case("trees_integers", "TreeEnsembleClassifier", [np.round(3 * x).astype(np.int64)], ("int64", "float32"), classlabels_int64s=[5, 3, 9], **trees("class", 5, [0, 1, 2], ALL))
for function in ("AVERAGE", "MIN", "MAX"):
    case(f"trees_{function}", "TreeEnsembleRegressor", [rounded], n_targets=1, aggregate_function=function, base_values=[0.25], **trees("target", 5, [0], ["BRANCH_LT"]))
for transform in ("NONE", "LOGISTIC", "SOFTMAX"):
    case(f"trees_classes_{transform}", "TreeEnsembleClassifier", [rounded], ("int64", "float32"), classlabels_int64s=[5, 3, 9], base_values=[0.1, 0.2, 0.3],
         post_transform=transform, **trees("class", 5, [0, 1, 2], ["BRANCH_LEQ"], True))
for transform in ("NONE", "LOGISTIC"):
    case(f"trees_two_{transform}", "TreeEnsembleClassifier", [rounded], ("int64", "float32"), classlabels_int64s=[5, 3], base_values=[0.1],
         post_transform=transform, **trees("class", 5, [0], ["BRANCH_LT"], True))
case("trees_probabilities", "TreeEnsembleClassifier", [rounded], ("int64", "float32"), classlabels_int64s=[5, 3], **trees("class", 5, [0], ["BRANCH_LEQ"], scale=0.01, shift=0.1))

# Trees whose leaves are listed separately; the last kind of branch tests whether a feature is one of several values.
count = 6
separate = {
    "nodes_featureids": RANDOM.integers(0, 4, count).tolist(), "nodes_splits": numpy_helper.from_array(np.round(values(count), 1)),
    "nodes_modes": numpy_helper.from_array(np.array([6, 1, 2, 3, 6, 5], np.uint8)),
    "nodes_truenodeids": [1, 0, 1, 4, 2, 3], "nodes_trueleafs": [0, 1, 1, 0, 1, 1],
    "nodes_falsenodeids": [2, 4, 5, 5, 6, 7], "nodes_falseleafs": [0, 1, 1, 0, 1, 1],
    "leaf_targetids": [0, 1, 0, 1, 0, 1, 0, 1], "leaf_weights": numpy_helper.from_array(values(8)), "tree_roots": [0, 3],
    "membership_values": numpy_helper.from_array(np.array([4, 1, 3, np.nan, 2, 1, np.nan], np.float32)),
}
case("leaves", "TreeEnsemble", [np.abs(np.round(2 * x))], version=5, n_targets=2, **separate)
