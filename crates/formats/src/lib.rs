//! Weight files: named tensors, nothing trusted before it is checked.
