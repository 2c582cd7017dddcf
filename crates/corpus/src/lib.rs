//! Mail and text to grouped, split, memory-mapped token files.
