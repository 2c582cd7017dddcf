//! Token texts made visible: blanks, line ends and control characters get signs of their own.

use unicode_width::UnicodeWidthChar;

/// The text with every invisible character replaced by a visible sign.
#[must_use]
pub fn visible(text: &str) -> String {
    text.chars().map(sign).collect()
}

fn sign(c: char) -> char {
    match c {
        ' ' => '␣',
        '\n' => '↵',
        '\t' => '→',
        // The control pictures stand in the order of the control characters.
        '\0'..='\u{1f}' => char::from_u32(0x2400 + c as u32).unwrap_or('\u{fffd}'),
        '\u{7f}' => '␡',
        c if c.is_control() || c.width().unwrap_or(0) == 0 => '\u{fffd}',
        c => c,
    }
}

/// The visible text in exactly so many columns: cut with an ellipsis, filled with blanks.
pub(crate) fn column(text: &str, width: usize) -> String {
    let signs: Vec<char> = visible(text).chars().collect();
    let wide = |c: &char| c.width().unwrap_or(0);
    let total: usize = signs.iter().map(wide).sum();
    let (mut out, mut used) = (String::new(), 0);
    let limit = if total > width { width.saturating_sub(1) } else { width };
    for c in signs {
        if used + wide(&c) > limit {
            break;
        }
        used += wide(&c);
        out.push(c);
    }
    if total > width && width > 0 {
        out.push('…');
        used += 1;
    }
    out.extend(std::iter::repeat_n(' ', width.saturating_sub(used)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_and_controls_are_seen() {
        assert_eq!(visible(" a\n\tb\u{1}\u{7f}\u{200d}"), "␣a↵→b␁␡\u{fffd}");
    }

    #[test]
    fn columns_are_exact_for_wide_characters_too() {
        for text in ["", "abc", "abcdefghij", "日本語の文", "é", "👩‍👩‍👧"] {
            let cut = column(text, 6);
            let width: usize = cut.chars().map(|c| c.width().unwrap_or(0)).sum();
            assert_eq!(width, 6, "{text:?} became {cut:?}");
        }
        assert_eq!(column("abcdefghij", 6), "abcde…");
    }
}
