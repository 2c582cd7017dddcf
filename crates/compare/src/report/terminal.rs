//! The report for a terminal: the verdict, the table, the differences and what stands behind them,
//! within a given width. Columns give way in a fixed order where the width does not hold them.

use super::numbers::{
    bracket, counted, fixed, mebibytes, percent, percent_bracket, signed, signed_bracket, whole,
};
use crate::{Analysis, Row};

/// The report as lines of at most `width` columns where words allow it (80 at least).
pub fn terminal(analysis: &Analysis, width: usize) -> String {
    let width = width.clamp(80, 160);
    let data = &analysis.audit.data;
    let synthetic = if data.synthetic { " [synthetic data]" } else { "" };
    let mut out = format!(
        "{}: {}{synthetic}\n\n{}",
        analysis.experiment.name,
        data.description,
        wrapped(&analysis.headline(), width, "")
    );
    out.push_str(&table(&columns(analysis), width));
    out.push_str(&pairs(analysis, width));
    out.push_str(&next_tokens(analysis, width));
    out.push_str(&footer(analysis, width));
    for warning in &analysis.warnings {
        out.push_str(&wrapped(&format!("warning: {warning}"), width, "  "));
    }
    out
}

/// A column: heading, cells, and how early it gives way (0 never).
struct Column {
    heading: String,
    cells: Vec<String>,
    gives_way: u8,
}

fn columns(analysis: &Analysis) -> Vec<Column> {
    let level = format!("{:.0} %", 100.0 * analysis.experiment.confidence);
    let column = |heading: &str, gives_way: u8, cell: &dyn Fn(&Row) -> Option<String>| Column {
        heading: heading.to_owned(),
        cells: analysis
            .rows
            .iter()
            .map(|row| cell(row).unwrap_or_else(|| "-".to_owned()))
            .collect(),
        gives_way,
    };
    vec![
        column("model", 0, &|row| Some(row.arm.name.clone())),
        column("parameters", 3, &|row| Some(whole(row.parameters.dense))),
        column("MiB", 5, &|row| Some(mebibytes(row.parameters.bytes as f64))),
        column("loss", 0, &|row| Some(fixed(row.loss?.mean, 3))),
        column(&format!("{level} interval"), 0, &|row| Some(bracket(row.loss?.interval, 3))),
        column("sd", 7, &|row| Some(fixed(row.loss?.spread?, 3))),
        column("accuracy", 0, &|row| Some(percent(row.accuracy?.mean))),
        column("interval", 8, &|row| Some(percent_bracket(row.accuracy?.interval))),
        column("perplexity", 6, &|row| Some(fixed(row.loss?.mean.exp(), 1))),
        column("train s", 2, &|row| Some(fixed(row.seconds?.mean, 2))),
        column("tokens/s", 4, &|row| Some(whole(row.tokens_per_second?.mean as u64))),
        column("peak MiB", 1, &|row| Some(mebibytes(row.peak_bytes?.most))),
        column("seeds", 9, &|row| Some(seeds(row))),
    ]
}

fn seeds(row: &Row) -> String {
    match row.failed {
        0 => row.runs.len().to_string(),
        failed => format!("{} of {}", row.runs.len(), row.runs.len() + failed),
    }
}

fn table(columns: &[Column], width: usize) -> String {
    let wide = |column: &Column| {
        let cells = column.cells.iter().chain([&column.heading]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut shown: Vec<&Column> = columns.iter().collect();
    loop {
        let total: usize = shown.iter().map(|column| wide(column) + 2).sum();
        let last = shown.iter().map(|column| column.gives_way).max().unwrap_or(0);
        if total <= width + 2 || last == 0 {
            break;
        }
        shown.retain(|column| column.gives_way != last);
    }
    let rows = shown.first().map_or(0, |column| column.cells.len());
    let line = |cell: &dyn Fn(&Column) -> String| {
        let cells = shown.iter().enumerate().map(|(at, column)| {
            let text = cell(column);
            let pad = " ".repeat(wide(column) - text.chars().count());
            if at == 0 { text + &pad } else { pad + &text }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let mut out = format!("\n{}", line(&|column| column.heading.clone()));
    out.push_str(&line(&|column| "-".repeat(wide(column))));
    for row in 0..rows {
        out.push_str(&line(&|column| column.cells[row].clone()));
    }
    out
}

fn pairs(analysis: &Analysis, width: usize) -> String {
    let mut out = String::new();
    if analysis.pairs.is_empty() {
        return out;
    }
    out.push_str("\nloss difference, nats a token (intervals hold together)\n");
    for pair in &analysis.pairs {
        let (a, b) = (&analysis.rows[pair.a].arm.name, &analysis.rows[pair.b].arm.name);
        let line = format!(
            "{a} - {b}: {} {}, p {:.4}; {}",
            signed(pair.loss.mean, 3),
            signed_bracket(pair.loss.interval, 3),
            pair.p_value,
            pair.verdict.text
        );
        out.push_str(&wrapped(&line, width, "  "));
    }
    out
}

fn next_tokens(analysis: &Analysis, width: usize) -> String {
    let mut out = String::new();
    for prompt in &analysis.experiment.prompts {
        out.push_str(&format!("\nafter \"{prompt}\"\n"));
        for row in &analysis.rows {
            let Some(list) = row.runs.first().and_then(|run| run.top_next.get(prompt)) else {
                continue;
            };
            let words: Vec<_> = list
                .iter()
                .map(|(token, chance)| format!("{} {:.1}%", token.escape_debug(), 100.0 * chance))
                .collect();
            let line = format!("{}: {}", row.arm.name, words.join(", "));
            out.push_str(&wrapped(&line, width, "    "));
        }
    }
    out
}

fn footer(analysis: &Analysis, width: usize) -> String {
    let (data, machine) = (&analysis.audit.data, &analysis.audit.machine);
    let program = &analysis.audit.program;
    let sides: Vec<_> = data
        .sides
        .iter()
        .map(|s| format!("{} {} groups, {} tokens", s.name, whole(s.groups), whole(s.tokens)))
        .collect();
    let base = analysis.rows.iter().find_map(|row| row.runs.first());
    let base = base.map_or(0, |run| run.memory.baseline_process_bytes);
    let lines = [
        format!(
            "Grouped by {}; {}; checked under {}; margin {} nats; {} bootstrap draws.",
            data.group_by,
            counted(analysis.experiment.seeds.len(), "seed"),
            analysis.groupings.join(" and "),
            analysis.experiment.margin_nats,
            whole(analysis.draws as u64)
        ),
        format!("{}.", sides.join("; ")),
        format!(
            "Peak memory is of a process of its own; the empty harness takes {} MiB of it.",
            mebibytes(base as f64)
        ),
        format!(
            "{}, {}, {}; version {}, commit {}.",
            machine.processor,
            machine.instruction_set,
            counted(machine.threads as usize, "thread"),
            program.version,
            program.commit.as_deref().unwrap_or("unknown")
        ),
    ];
    lines.iter().fold("\n".to_owned(), |out, line| out + &wrapped(line, width, "  "))
}

/// Lines of at most `width` columns; those after the first are indented.
pub(crate) fn wrapped(text: &str, width: usize, indent: &str) -> String {
    page::wrapped(text, ("", indent), width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invented;

    fn report(width: usize) -> String {
        let (experiment, audit, records) = invented::comparison();
        terminal(&Analysis::new(&experiment, &audit, &records, None).unwrap(), width)
    }

    #[test]
    fn lines_keep_within_the_width() {
        for width in [80, 100, 120] {
            let text = report(width);
            let longest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(longest <= width, "{width}: {longest}\n{text}");
        }
    }

    #[test]
    fn narrow_ones_keep_what_matters_and_wide_ones_have_all() {
        let narrow = report(80);
        for words in ["[synthetic data]", "No decisive winner", "loss", "interval", "accuracy"] {
            assert!(narrow.contains(words), "{words}\n{narrow}");
        }
        assert!(!narrow.contains("perplexity"));
        let wide = report(160);
        for words in ["perplexity", "tokens/s", "peak MiB", "sd", "16,000,000", "rnn - transformer"]
        {
            assert!(wide.contains(words), "{words}\n{wide}");
        }
    }

    #[test]
    fn a_row_lines_up_under_its_heading() {
        let text = report(120);
        let lines: Vec<_> = text.lines().collect();
        let heading = lines.iter().position(|line| line.starts_with("model")).unwrap();
        let end = |line: &str, word: &str| line.find(word).unwrap() + word.len();
        let loss = end(lines[heading], " loss");
        let uniform = lines.iter().find(|line| line.starts_with("uniform")).unwrap();
        assert_eq!(end(uniform, "8.294"), loss);
    }
}
