//! The matrices between embeddings and output projection, one linear map each: what an optimizer of
//! matrices works on.

use crate::ModelConfig;
use std::ops::Range;
use tensor::Layout;

/// Rows of a parameter that are one linear map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenMatrix {
    /// The parameter's place in the layout.
    pub parameter: usize,
    /// Which of its rows.
    pub rows: Range<usize>,
}

/// All of a network's: queries, keys and values apart, though they are one parameter.
pub fn hidden_matrices(config: &ModelConfig, layout: &Layout) -> Vec<HiddenMatrix> {
    let mut all = Vec::new();
    for (parameter, spec) in layout.specs().iter().enumerate() {
        let learns = spec.decay && config.trains(&spec.name);
        if spec.shape.len() != 2 || !learns || spec.name == "head.weight" {
            continue;
        }
        let parts = match config {
            ModelConfig::Transformer(c) if spec.name.ends_with("attn.qkv.weight") => {
                let (h, g, d) = (c.num_attention_heads, c.kv_heads(), c.head_size());
                vec![h * d, g * d, g * d]
            }
            _ => vec![spec.shape[0]],
        };
        let mut from = 0;
        for rows in parts {
            all.push(HiddenMatrix { parameter, rows: from..from + rows });
            from += rows;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, RnnConfig, TransformerConfig};

    fn names(config: &ModelConfig) -> Vec<(String, Range<usize>)> {
        let layout = Model::layout_of(config).unwrap();
        let name = |m: HiddenMatrix| (layout.specs()[m.parameter].name.clone(), m.rows);
        hidden_matrices(config, &layout).into_iter().map(name).collect()
    }

    #[test]
    fn embeddings_and_the_output_projection_are_none() {
        let mut c = TransformerConfig::email(40, 16);
        (c.num_hidden_layers, c.num_key_value_heads) = (1, Some(2));
        let qkv = "layers.0.attn.qkv.weight".to_owned();
        let right = [
            (qkv.clone(), 0..64),
            (qkv.clone(), 64..96),
            (qkv, 96..128),
            ("layers.0.attn.out.weight".to_owned(), 0..64),
            ("layers.0.mlp.up.weight".to_owned(), 0..256),
            ("layers.0.mlp.down.weight".to_owned(), 0..64),
        ];
        assert_eq!(names(&ModelConfig::Transformer(c)), right);
        let rnn = names(&ModelConfig::Rnn(RnnConfig::email(40)));
        assert_eq!(rnn, [("rnn.w_ih".to_owned(), 0..96), ("rnn.w_hh".to_owned(), 0..96)]);
    }
}
