//! A linear axis: a range, round ticks inside it and labels with as many decimals as the step needs.

/// How tick labels are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Label {
    /// As decimals.
    Plain,
    /// As percent of 1.
    Percent,
    /// With k and M.
    Short,
}

/// A range of values on a range of places.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    step: f64,
}

impl Axis {
    /// From `low` at place `from` to `high` at place `to`, with about `count` ticks. An empty range
    /// is widened around its value.
    pub(crate) fn new((low, high): (f64, f64), (from, to): (f64, f64), count: usize) -> Axis {
        let (low, high) = if high - low > 1e-12 * (1.0 + low.abs()) {
            (low, high)
        } else {
            (low - 0.5, high + 0.5)
        };
        let step = round_step((high - low) / count.max(1) as f64);
        Axis { low, high, from, to, step }
    }

    /// The same with the range stretched to whole steps.
    pub(crate) fn rounded(mut self) -> Axis {
        self.low = (self.low / self.step + 1e-9).floor() * self.step;
        self.high = (self.high / self.step - 1e-9).ceil() * self.step;
        self
    }

    /// Where a value stands; values outside stand at the ends.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let part = (value.clamp(self.low, self.high) - self.low) / (self.high - self.low);
        self.from + part * (self.to - self.from)
    }

    /// Whether a value lies within the range.
    pub(crate) fn contains(&self, value: f64) -> bool {
        value >= self.low && value <= self.high
    }

    /// Ticks with their labels, in ascending order.
    pub(crate) fn ticks(&self, label: Label) -> Vec<(f64, String)> {
        let first = (self.low / self.step - 1e-6).ceil() as i64;
        let last = (self.high / self.step + 1e-6).floor() as i64;
        let tick = |k: i64| {
            let value = k as f64 * self.step;
            (value, self.label(value, label))
        };
        (first..=last).map(tick).collect()
    }

    fn label(&self, value: f64, label: Label) -> String {
        let (scale, unit) = match label {
            Label::Plain => (1.0, ""),
            Label::Percent => (0.01, " %"),
            Label::Short if self.high.abs() >= 1e6 => (1e6, "M"),
            Label::Short if self.high.abs() >= 1e3 => (1e3, "k"),
            Label::Short => (1.0, ""),
        };
        if value == 0.0 {
            return format!("0{}", unit.trim_start_matches(['M', 'k']));
        }
        let decimals = decimals(self.step / scale);
        format!("{:.decimals$}{unit}", value / scale).replace('-', "−")
    }
}

/// 1, 2 or 5 times a power of ten, not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|f| f * power >= least * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

fn decimals(step: f64) -> usize {
    (-(step * 1.000_001).log10().floor()).clamp(0.0, 9.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(range: (f64, f64), count: usize, label: Label) -> Vec<String> {
        let axis = Axis::new(range, (0.0, 100.0), count);
        axis.ticks(label).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(labels((4.38, 5.02), 4, Label::Plain), ["4.4", "4.6", "4.8", "5.0"]);
        assert_eq!(labels((-0.06, 0.03), 4, Label::Plain), ["−0.05", "0"]);
        assert_eq!(labels((0.0, 3_856_904.0), 4, Label::Short), ["0", "1M", "2M", "3M"]);
        assert_eq!(labels((0.0, 1.0), 4, Label::Percent), ["0 %", "50 %", "100 %"]);
        assert_eq!(
            labels((0.0, 2500.0), 5, Label::Short),
            ["0", "0.5k", "1.0k", "1.5k", "2.0k", "2.5k"]
        );
    }

    #[test]
    fn an_empty_range_still_has_a_place() {
        let axis = Axis::new((3.0, 3.0), (0.0, 10.0), 4);
        assert_eq!(axis.place(3.0), 5.0);
        assert!(!axis.ticks(Label::Plain).is_empty());
    }

    #[test]
    fn places_run_from_end_to_end() {
        let axis = Axis::new((2.3, 7.9), (100.0, 0.0), 4).rounded();
        assert_eq!((axis.place(2.0), axis.place(8.0), axis.place(99.0)), (100.0, 0.0, 0.0));
        assert!(axis.contains(2.0) && !axis.contains(8.1));
    }
}
