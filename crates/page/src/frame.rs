//! The frame of a page: style, data and script inside, nothing fetched.

use maud::{DOCTYPE, Markup, PreEscaped, html};

/// What a page has beside its body.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frame<'a> {
    /// Its title.
    pub title: &'a str,
    /// Its style sheets, one after the other.
    pub styles: &'a [&'a str],
    /// JSON for its script.
    pub data: Option<Data<'a>>,
    /// Its script.
    pub script: Option<&'a str>,
}

/// JSON under an id.
#[derive(Clone, Copy, Debug)]
pub struct Data<'a> {
    /// The element's id.
    pub id: &'a str,
    /// The text; it cannot end its element.
    pub json: &'a str,
}

impl Frame<'_> {
    /// The page around a body.
    #[must_use]
    pub fn page(&self, body: &Markup) -> String {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) }
                    style { @for style in self.styles { (PreEscaped(style)) } }
                }
                body {
                    (body)
                    @if let Some(Data { id, json }) = self.data {
                        script id=(id) type="application/json" { (PreEscaped(json.replace('<', "\\u003c"))) }
                    }
                    @if let Some(script) = self.script { script { (PreEscaped(script)) } }
                }
            }
        }
        .into_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_cannot_end_its_element() {
        let data = Data { id: "record", json: "{\"a\": \"</script><script>alert(1)</script>\"}" };
        let frame =
            Frame { title: "a <b> & c", data: Some(data), script: Some("1;"), styles: &["p{}"] };
        let page = frame.page(&html! { p { "x" } });
        assert!(page.contains("a &lt;b&gt; &amp; c") && page.contains("<p>x</p>"));
        assert!(!page.contains("<script>alert"));
        assert_eq!(page.matches("</script>").count(), 2);
    }
}
