//! HTML mail reduced to text: block ends become line ends, quoted blocks go, the mail library does
//! the rest.

use mail_parser::decoders::html::html_to_text;

/// Elements whose end is the end of a line.
const BLOCKS: [&str; 13] =
    ["div", "tr", "li", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "table", "pre"];

/// The text of an HTML document; quoted blocks stay where `keep_quotes`.
pub(super) fn to_text(html: &str, keep_quotes: bool) -> String {
    let mut out = String::with_capacity(html.len());
    let mut rest = html;
    let mut quoted = 0usize;
    while let Some(at) = memchr::memchr(b'<', rest.as_bytes()) {
        push(&mut out, &rest[..at], quoted);
        let tag = &rest[at..];
        let end = memchr::memchr(b'>', tag.as_bytes()).map_or(tag.len(), |end| end + 1);
        let (name, closes) = tag_name(tag);
        if name.eq_ignore_ascii_case("blockquote") && !keep_quotes {
            quoted = if closes { quoted.saturating_sub(1) } else { quoted + 1 };
            push(&mut out, "<br>", 0);
        } else {
            push(&mut out, &tag[..end], quoted);
            if closes && BLOCKS.iter().any(|block| name.eq_ignore_ascii_case(block)) {
                push(&mut out, "<br>", quoted);
            } else if closes && name.eq_ignore_ascii_case("td") {
                push(&mut out, " ", quoted);
            }
        }
        rest = &tag[end..];
    }
    push(&mut out, rest, quoted);
    html_to_text(&out)
}

fn push(out: &mut String, text: &str, quoted: usize) {
    if quoted == 0 {
        out.push_str(text);
    }
}

fn tag_name(tag: &str) -> (&str, bool) {
    let inner = &tag[1..];
    let (inner, closes) = match inner.strip_prefix('/') {
        Some(inner) => (inner, true),
        None => (inner, false),
    };
    let len = inner.bytes().take_while(u8::is_ascii_alphanumeric).count();
    (&inner[..len], closes)
}

#[cfg(test)]
mod tests {
    use super::to_text;

    #[test]
    fn blocks_end_lines_and_quotes_go() {
        let html =
            "<div>One</div><div>two &amp; three</div><blockquote>old <b>x</b></blockquote>end";
        assert_eq!(to_text(html, false).trim(), "One\ntwo & three\n\n\nend");
        assert!(to_text(html, true).contains("old"));
        assert_eq!(to_text("<", false), "");
        assert_eq!(to_text("<p>B</p>", false).trim(), "B");
    }
}
