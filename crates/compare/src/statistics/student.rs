//! Quantiles of the normal and of Student's t distribution, for means of few seeds.

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// The standard normal quantile at probability `p` in (0, 1).
pub fn normal_quantile(p: f64) -> f64 {
    Normal::standard().inverse_cdf(p)
}

/// Student's t quantile at probability `p` with `freedom` degrees of freedom, which need not be
/// whole; the normal one where they are so many, or so few, that t has no use.
pub fn t_quantile(p: f64, freedom: f64) -> f64 {
    match StudentsT::new(0.0, 1.0, freedom) {
        Ok(t) if freedom < 1e6 => t.inverse_cdf(p),
        _ => normal_quantile(p),
    }
}

/// Welch and Satterthwaite's degrees of freedom of a sum of independent variances, each given with
/// its own degrees.
pub fn satterthwaite(parts: &[(f64, f64)]) -> f64 {
    let total: f64 = parts.iter().map(|(variance, _)| variance).sum();
    let below: f64 = parts
        .iter()
        .filter(|(variance, _)| *variance > 0.0)
        .map(|(variance, freedom)| variance * variance / freedom)
        .sum();
    if below > 0.0 { total * total / below } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_agree_with_printed_tables() {
        // Tables of Student's t (two-sided 95 %, 99 %; 1, 5, 9, 30 degrees) and of the normal.
        let cases = [
            (0.975, 1.0, 12.706),
            (0.975, 5.0, 2.571),
            (0.975, 9.0, 2.262),
            (0.995, 30.0, 2.750),
            (0.80, 8.0, 0.889),
            (0.975, f64::INFINITY, 1.960),
        ];
        for (p, freedom, expected) in cases {
            let found = t_quantile(p, freedom);
            assert!((found - expected).abs() < 6e-4, "t({p}, {freedom}) = {found}");
        }
        assert!((t_quantile(0.025, 5.0) + 2.571).abs() < 6e-4);
    }

    #[test]
    fn equal_variances_add_their_degrees() {
        assert!((satterthwaite(&[(2.0, 5.0), (2.0, 5.0)]) - 10.0).abs() < 1e-12);
        assert!((satterthwaite(&[(2.0, 5.0), (0.0, 0.0)]) - 5.0).abs() < 1e-12);
        assert_eq!(satterthwaite(&[(0.0, 5.0)]), f64::INFINITY);
    }
}
