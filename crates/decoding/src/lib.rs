//! Rules from a row of logits to the next token, exact and explained.
