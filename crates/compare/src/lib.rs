//! Comparing models honestly: records, intervals, verdicts, reports.
