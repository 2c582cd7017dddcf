//! How far two rows of logits over one vocabulary are apart.

/// Two predictions of the same place, and what came next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Divergence {
    /// KL(first ‖ second) = Σ p·(ln p − ln q), in nats; 0 where both are the same.
    pub kl: f64,
    /// −ln of what either gave the token that came next.
    pub nats: [f64; 2],
    /// Whether both hold the same token most likely; the smaller id wins a tie.
    pub same_top: bool,
}

/// Compares two rows; none when a sum over one is no number (NaN, +∞, or nothing but −∞).
///
/// # Panics
/// When the rows differ in length or `next` lies outside.
pub fn divergence(first: &[f32], second: &[f32], next: u32) -> Option<Divergence> {
    assert_eq!(first.len(), second.len(), "rows of one vocabulary");
    let (a, b) = (log_sum(first)?, log_sum(second)?);
    let mut kl = 0.0;
    for (&x, &y) in first.iter().zip(second) {
        let p = (f64::from(x) - a).exp();
        // What the first holds impossible adds nothing, whatever the second says.
        if p > 0.0 {
            kl += p * ((f64::from(x) - a) - (f64::from(y) - b));
        }
    }
    let of = |row: &[f32], sum: f64| sum - f64::from(row[next as usize]);
    // Rounding may leave a little below nothing.
    let kl = kl.max(0.0);
    Some(Divergence {
        kl,
        nats: [of(first, a), of(second, b)],
        same_top: top(first) == top(second),
    })
}

fn log_sum(logits: &[f32]) -> Option<f64> {
    let most = f64::from(logits[top(logits)]);
    let sum = most + logits.iter().map(|&z| (f64::from(z) - most).exp()).sum::<f64>().ln();
    sum.is_finite().then_some(sum)
}

fn top(logits: &[f32]) -> usize {
    let better = |best: usize, i: usize| if logits[i] > logits[best] { i } else { best };
    (0..logits.len()).reduce(better).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_from_the_logits() {
        // p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4).
        let logs = |p: [f32; 3]| p.map(|p| p.ln() + 5.0);
        let (p, q) = (logs([0.5, 0.25, 0.25]), logs([0.25, 0.5, 0.25]));
        let found = divergence(&p, &q, 1).unwrap();
        assert!((found.kl - 0.25 * 2f64.ln()).abs() < 1e-6, "{found:?}");
        assert!((found.nats[0] - 4f64.ln()).abs() < 1e-6, "{found:?}");
        assert!((found.nats[1] - 2f64.ln()).abs() < 1e-6, "{found:?}");
        assert!(!found.same_top);
        let same = divergence(&p, &p, 0).unwrap();
        assert!(same.same_top && same.kl == 0.0);
        // p = (1/2, 1/2), q = (3/4, 1/4).
        let (p, q) = ([0.0, 0.0], [3f32.ln(), 0.0]);
        let expected = 0.5 * (0.5f64 / 0.75).ln() + 0.5 * 2f64.ln();
        assert!((divergence(&p, &q, 0).unwrap().kl - expected).abs() < 1e-6);
        assert_eq!((top(&q), top(&[1.0, 5.0, 2.0])), (0, 1));
    }

    #[test]
    fn impossible_tokens_and_bad_rows() {
        let never = f32::NEG_INFINITY;
        let both = divergence(&[0.0, never], &[0.0, never], 0).unwrap();
        assert_eq!(both.kl, 0.0);
        assert_eq!(divergence(&[0.0, 0.0], &[0.0, never], 0).unwrap().kl, f64::INFINITY);
        for bad in [[f32::NAN, 0.0], [0.0, f32::INFINITY], [0.0, f32::NAN], [never, never]] {
            assert_eq!(divergence(&bad, &[0.0, 0.0], 0), None, "{bad:?}");
            assert_eq!(divergence(&[0.0, 0.0], &bad, 0), None, "{bad:?}");
        }
    }
}
