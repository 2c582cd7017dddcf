//! Text for a terminal: lines of a width, numbers with separators.

/// A text in lines of at most `width` columns: the first behind `first`, the others behind `rest`. A word
/// that is longer has a line of its own. Ends with a line end.
#[must_use]
pub fn wrapped(text: &str, (first, rest): (&str, &str), width: usize) -> String {
    let mut out = first.to_owned();
    let (mut column, mut begins) = (first.chars().count(), true);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if !begins && column + 1 + length > width {
            out.push('\n');
            out += rest;
            (column, begins) = (rest.chars().count(), true);
        }
        if !begins {
            out.push(' ');
            column += 1;
        }
        out += word;
        column += length;
        begins = false;
    }
    out + "\n"
}

/// A whole number with separators.
#[must_use]
pub fn separated(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_within_their_width() {
        let text = wrapped("aaa bbb ccccccccccccc d", ("x: ", "   "), 10);
        assert_eq!(text, "x: aaa bbb\n   ccccccccccccc\n   d\n");
        assert_eq!(wrapped("", ("", "  "), 10), "\n");
    }

    #[test]
    fn thousands_stand_apart() {
        assert_eq!([0, 999, 1000, 1_234_567].map(separated), ["0", "999", "1,000", "1,234,567"]);
    }
}
