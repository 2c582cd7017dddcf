//! Parts of a whole side by side, as an SVG with its legend.

use crate::COLOURS;
use maud::{Markup, html};

/// One bar: its name and its parts (name, value, the value in words), in order.
#[derive(Clone, Debug)]
pub struct Stack {
    /// What the bar is.
    pub name: String,
    /// Its parts.
    pub parts: Vec<(String, f64, String)>,
}

/// Bars under each other on one scale; a part of the same name has the same colour.
#[must_use]
pub fn stacks(bars: &[Stack]) -> Markup {
    let sum = |bar: &Stack| bar.parts.iter().map(|(_, value, _)| value.max(0.0)).sum::<f64>();
    let longest = bars.iter().map(sum).fold(0.0, f64::max);
    if longest <= 0.0 {
        return html! {};
    }
    let mut names: Vec<&str> = Vec::new();
    for (name, ..) in bars.iter().flat_map(|bar| &bar.parts) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let colour = |name: &str| {
        let place = names.iter().position(|other| *other == name).unwrap_or(0);
        COLOURS[place % COLOURS.len()]
    };
    let rects = |bar: &Stack| {
        let mut x = 0.0;
        let mut all = Vec::new();
        for (name, value, words) in &bar.parts {
            let width = 1000.0 * value.max(0.0) / longest;
            all.push((x, width, colour(name), format!("{name}: {words}")));
            x += width;
        }
        all
    };
    html! {
        @for bar in bars {
            @if !bar.name.is_empty() { p class="facts" { (bar.name) } }
            @let told: Vec<String> = rects(bar).into_iter().map(|(.., words)| words).collect();
            svg class="stack" viewBox="0 0 1000 48" preserveAspectRatio="none" role="img" aria-label=(told.join(", ")) {
                @for (x, width, fill, words) in rects(bar) {
                    rect x=(format!("{x:.2}")) y="4" width=(format!("{width:.2}")) height="40" fill=(fill) {
                        title { (words) }
                    }
                }
            }
        }
        p class="legend" {
            @for name in &names { span { span class="key" style=(format!("background:{}", colour(name))) {} (name) } " " }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_colour_and_the_longest_bar_the_whole_width() {
        let part = |name: &str, value: f64| (name.to_owned(), value, format!("{value} of it"));
        let before =
            Stack { name: "before".into(), parts: vec![part("<a>", 30.0), part("b", 10.0)] };
        let after = Stack { name: "after".into(), parts: vec![part("b", 20.0)] };
        let page = stacks(&[before, after]).into_string();
        assert!(
            page.contains("&lt;a&gt;: 30 of it") && page.contains("width=\"750.00\""),
            "{page}"
        );
        assert!(page.contains("width=\"500.00\""));
        assert_eq!(page.matches(&format!("fill=\"{}\"", COLOURS[1])).count(), 2);
        assert_eq!(page.matches("class=\"key\"").count(), 2);
        assert_eq!(stacks(&[]).into_string(), "");
    }
}
