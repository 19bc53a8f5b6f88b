//! What to compute: ONNX import and export, graphs, operators, gradients, lowering to kernels.
