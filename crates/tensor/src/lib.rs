//! Operations with their gradients, one file each.
