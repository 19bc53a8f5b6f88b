//! Data sets: NumPy archives, NIfTI volumes and folders of images as batches of tensors.
