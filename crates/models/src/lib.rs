//! Networks: one definition and one forward pass for training and inference.
