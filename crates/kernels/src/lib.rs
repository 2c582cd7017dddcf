//! Arithmetic on slices: one source for every instruction set, chosen at run time.
