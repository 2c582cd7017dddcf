//! Numbers as readers read them: the same in every form of the report.

use crate::statistics::Interval;
pub(crate) use page::separated as whole;

pub(crate) const MIB: f64 = 1_048_576.0;

/// A number with `decimals` decimals; a dash where it is not finite.
pub(crate) fn fixed(value: f64, decimals: usize) -> String {
    if value.is_finite() { format!("{value:.decimals$}") } else { "–".to_owned() }
}

/// With a sign, for differences.
pub(crate) fn signed(value: f64, decimals: usize) -> String {
    if value.is_finite() { format!("{value:+.decimals$}") } else { "–".to_owned() }
}

/// A share of 1 as percent with one decimal.
pub(crate) fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.1} %", 100.0 * share) } else { "–".to_owned() }
}

/// Bytes as MiB with one decimal; two where they are few.
pub(crate) fn mebibytes(bytes: f64) -> String {
    fixed(bytes / MIB, if bytes < MIB { 2 } else { 1 })
}

/// Seconds: tenths below a hundred, whole below an hour, hours above.
pub(crate) fn seconds(value: f64) -> String {
    match value {
        v if !v.is_finite() => "–".to_owned(),
        v if v < 10.0 => format!("{v:.2} s"),
        v if v < 100.0 => format!("{v:.1} s"),
        v if v < 7200.0 => format!("{v:.0} s"),
        v => format!("{:.1} h", v / 3600.0),
    }
}

/// An interval in brackets.
pub(crate) fn bracket(interval: Interval, decimals: usize) -> String {
    format!("[{}, {}]", fixed(interval.low, decimals), fixed(interval.high, decimals))
}

/// An interval of differences in brackets, with signs.
pub(crate) fn signed_bracket(interval: Interval, decimals: usize) -> String {
    format!("[{}, {}]", signed(interval.low, decimals), signed(interval.high, decimals))
}

/// An interval of shares, as percent.
pub(crate) fn percent_bracket(interval: Interval) -> String {
    format!("[{:.1}, {:.1}]", 100.0 * interval.low, 100.0 * interval.high)
}

/// "1 seed", "6 seeds".
pub(crate) fn counted(count: usize, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

/// A true minus sign in place of a hyphen before digits, for pages.
pub(crate) fn minus(text: &str) -> String {
    text.replace('-', "−")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_readers_read_them() {
        assert_eq!(whole(16_000_000), "16,000,000");
        assert_eq!((whole(0), whole(999), whole(1000)), ("0".into(), "999".into(), "1,000".into()));
        assert_eq!(percent(0.2284), "22.8 %");
        assert_eq!((fixed(4.4549, 3), fixed(f64::NAN, 3)), ("4.455".into(), "–".into()));
        assert_eq!((mebibytes(2_638_208.0), mebibytes(15_984.0)), ("2.5".into(), "0.02".into()));
        assert_eq!(seconds(58.04), "58.0 s");
        assert_eq!((counted(1, "seed"), counted(6, "seed")), ("1 seed".into(), "6 seeds".into()));
    }
}
