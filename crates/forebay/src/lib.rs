//! Train and run ONNX models whose tensors do not fit in device memory.
