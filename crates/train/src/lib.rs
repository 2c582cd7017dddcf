//! From text to weights: the training step, its schedule, its checkpoints.
