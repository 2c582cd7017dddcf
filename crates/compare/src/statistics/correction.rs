//! Several comparisons at once: intervals by Bonferroni, p-values by Holm.

/// The confidence of each of `comparisons` intervals so that all hold together with `confidence`.
pub fn bonferroni(confidence: f64, comparisons: usize) -> f64 {
    1.0 - (1.0 - confidence) / comparisons.max(1) as f64
}

/// Bootstrap draws so that at least twenty fall beyond each end of such an interval.
pub fn draws_needed(confidence: f64, comparisons: usize) -> usize {
    let tail = (1.0 - bonferroni(confidence, comparisons)) / 2.0;
    (20.0 / tail).ceil() as usize
}

/// Holm's step-down adjustment (1979), in the order given.
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| p_values[a].total_cmp(&p_values[b]));
    let mut adjusted = vec![0.0; p_values.len()];
    let mut running = 0.0f64;
    for (rank, &at) in order.iter().enumerate() {
        running = running.max(p_values[at] * (p_values.len() - rank) as f64).min(1.0);
        adjusted[at] = running;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holm_by_hand() {
        // 0.01·4, 0.02·3, 0.03·2 (raised to 0.06), 0.04·1 (raised to 0.06).
        let adjusted = holm(&[0.04, 0.01, 0.03, 0.02]);
        for (found, expected) in adjusted.iter().zip([0.06, 0.04, 0.06, 0.06]) {
            assert!((found - expected).abs() < 1e-12, "{adjusted:?}");
        }
        assert_eq!(holm(&[0.9, 0.8]), vec![1.0, 1.0]);
        assert!(holm(&[]).is_empty());
    }

    #[test]
    fn bonferroni_shares_the_error_out() {
        assert!((bonferroni(0.95, 5) - 0.99).abs() < 1e-12);
        assert_eq!(bonferroni(0.95, 0), 0.95);
        assert_eq!(draws_needed(0.95, 1), 800);
        assert!(draws_needed(0.95, 45) > 35_000);
    }
}
