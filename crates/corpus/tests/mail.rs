//! Field cases of reading mail: encodings, charsets, parts and depth, with values derived by hand.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use corpus::mail::{MAX_DEPTH, Mail, MailReader, Mended, Quotes};
use proptest::prelude::*;

fn read(raw: impl AsRef<[u8]>) -> (Mail, Mended) {
    let mut mended = Mended::default();
    let mail = MailReader::new(Quotes::Strip).read(raw.as_ref(), &mut mended).unwrap();
    (mail, mended)
}

fn check(raw: impl AsRef<[u8]>, expected: &str) -> Mended {
    let (mail, mended) = read(raw.as_ref());
    assert_eq!(mail.text.trim(), expected, "{}", String::from_utf8_lossy(raw.as_ref()));
    mended
}

fn part(kind: &str, encoding: &str, body: &str) -> String {
    format!("Content-Type: {kind}\nContent-Transfer-Encoding: {encoding}\n\n{body}")
}

fn multipart(kind: &str, parts: &[&str]) -> String {
    let parts: String = parts.iter().map(|part| format!("--XX\n{part}\n")).collect();
    format!(
        "Subject: s\nMIME-Version: 1.0\nContent-Type: multipart/{kind}; boundary=\"XX\"\n\n{parts}--XX--\n"
    )
}

#[test]
fn o31_quoted_printable() {
    let raw = part("text/plain; charset=utf-8", "quoted-printable", "caf=C3=\n=A9 a=3Db=\nc");
    check(&raw, "café a=bc");
    check(raw.replace('\n', "\r\n"), "café a=bc");
    check(raw.replace("utf-8", "\"UTF-8\""), "café a=bc");
    check(raw.replace("utf-8", "utf8"), "café a=bc");
    assert_eq!(check(raw.replace("utf-8", "\"utf8\""), "café a=bc"), Mended::default());
    let lines = part("text/plain; charset=utf-8", "quoted-printable", "one\ntwo\n\nthree");
    check(lines, "one\ntwo\n\nthree");
}

#[test]
fn o31_base64_in_every_shape() {
    for body in ["PC9odG1sPn==", "PC9o\ndG1sPg==", "PC9o dG1s Pg==", "PC9odG1sPg", "PC9odG1sPg="] {
        check(part("text/plain; charset=utf-8", "base64", body), "</html>");
        check(part("text/plain; charset=utf-8", "base64", &body.replace('\n', "\r\n")), "</html>");
        let nested = part("text/plain; charset=utf-8", "base64", body);
        check(multipart("mixed", &[&nested]), "</html>");
    }
    // 75 characters a line: not a multiple of four.
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(5);
    let code = "VGhlIHF1aWNrIGJyb3duIGZveCBqdW1wcyBvdmVyIHRoZSBsYXp5IGRvZy4g".repeat(5);
    let folded: Vec<&str> =
        code.as_bytes().chunks(75).map(|c| std::str::from_utf8(c).unwrap()).collect();
    check(part("text/plain", "base64", &folded.join("\n")), text.trim());
}

#[test]
fn o31_plain_text_that_claims_to_be_base64_stays() {
    for body in ["Dear all, this is no base64.", "Please send me that file"] {
        let mended = check(part("text/plain; charset=utf-8", "base64", body), body);
        assert_eq!(mended.mislabelled_encoding, 1, "{body}");
    }
}

#[test]
fn o31_charsets() {
    let mended = check(b"Subject: s\n\ncaf\xE9", "café");
    assert_eq!(mended.missing_charset, 1);
    check("Subject: s\n\ncafé", "café");
    let unknown = check(b"Content-Type: text/plain; charset=x-nope\n\ncaf\xE9", "café");
    assert_eq!(unknown.unknown_charset, 1);
    check(b"Content-Type: text/plain; charset=us-ascii\n\ncaf\xE9", "café");
    check(b"Content-Type: text/plain; charset=iso-8859-1\n\ncaf\xE9", "café");
    check(b"Content-Type: text/plain; charset=ANSI_X3.4-1968\n\nplain", "plain");
    let (mail, _) = read(
        b"Subject: =?utf-8?Q?caf=C3=A9?=\nFrom: =?iso-8859-1?Q?Ren=E9?= <Rene@X.example>\n\nx",
    );
    assert_eq!((mail.subject.as_str(), mail.sender.as_str()), ("café", "rene@x.example"));
}

#[test]
fn o32_which_part_is_the_text() {
    let plain = |text: &str| format!("Content-Type: text/plain\n\n{text}");
    let html = |text: &str| format!("Content-Type: text/html\n\n{text}");
    check(multipart("alternative", &[&plain("A"), &html("<p>A</p>")]), "A");
    check(multipart("alternative", &[&plain(""), &html("<p>B</p>")]), "B");
    check(multipart("alternative", &[&plain(" \n"), &html("<p>B</p>")]), "B");
    let attached = "Content-Type: message/rfc822\n\nSubject: old\nContent-Type: text/plain\n\nOLD";
    check(multipart("mixed", &[&html("C"), attached]), "C");
    let image = "Content-Type: image/png\nContent-Transfer-Encoding: base64\n\niVBORw0K";
    check(multipart("mixed", &[&plain("1"), image, &plain("2")]), "1\n2");
    let attachment =
        "Content-Type: application/pdf\nContent-Disposition: attachment; filename=a.pdf\n\nJVBE";
    check(multipart("mixed", &[attachment]), "");
    let text_file =
        "Content-Type: text/plain\nContent-Disposition: attachment; filename=a.txt\n\nFILE";
    check(multipart("mixed", &[&plain("body"), text_file]), "body");
    let (mail, _) = read(html("<html><body>Hello<br>you &amp; me</body></html>"));
    assert_eq!((mail.text.trim(), mail.from_html), ("Hello\nyou & me", true));
}

fn nested(depth: usize, kind: &str) -> String {
    let mut raw = String::from("Subject: deep\n");
    for i in 0..depth {
        match kind {
            "multipart" => {
                raw.push_str(&format!("Content-Type: multipart/mixed; boundary=b{i}\n\n--b{i}\n"))
            }
            _ => raw.push_str("Content-Type: message/rfc822\n\n"),
        }
    }
    raw + "Content-Type: text/plain\n\ndeep text\n"
}

#[test]
fn o32_depth_has_a_limit_and_no_crash() {
    check(nested(25, "multipart"), "deep text");
    let closed: String = (0..25).rev().map(|i| format!("\n--b{i}--\n")).collect();
    check(nested(25, "multipart") + &closed, "deep text");
    for kind in ["multipart", "message"] {
        let start = cpu_seconds();
        let why = MailReader::new(Quotes::Strip)
            .read(nested(100_000, kind).as_bytes(), &mut Mended::default())
            .unwrap_err();
        assert!(why.contains("nest"), "{why}");
        assert!(why.contains(&MAX_DEPTH.to_string()) || why.contains("100000"), "{why}");
        assert!(cpu_seconds() - start < 2.0);
    }
    // Many attachments are not deep.
    let attached = "Content-Type: message/rfc822\n\nSubject: old\n\nOLD";
    let mut parts = vec!["Content-Type: text/plain\n\nbody"];
    parts.resize(200, attached);
    check(multipart("digest", &parts).replace("digest", "mixed"), "body");
}

/// Seconds this thread has run, not those it waited for other work on the machine.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split_whitespace().next().and_then(|first| first.parse::<f64>().ok());
    nanoseconds.unwrap_or(0.0) / 1e9
}

#[test]
fn o32_time_is_linear_in_the_size() {
    let once = |raw: &[u8]| {
        let start = cpu_seconds();
        let _ = MailReader::new(Quotes::Strip).read(raw, &mut Mended::default());
        cpu_seconds() - start
    };
    let seconds = |raw: &[u8]| (0..3).map(|_| once(raw)).fold(f64::MAX, f64::min);
    let parts = |n: usize| {
        format!("Content-Type: multipart/mixed; boundary=XX\n\n{}--XX--\n", "--XX\n\n".repeat(n))
    };
    // Eight times the parts: 8 when linear, 64 when quadratic.
    let (few, many) = (seconds(parts(125_000).as_bytes()), seconds(parts(1_000_000).as_bytes()));
    assert!(many < 24.0 * few.max(0.01), "{few} s, {many} s");
    let line = format!("Subject: s\n\n{}", "word ".repeat(10_000_000));
    assert!(seconds(line.as_bytes()) < 10.0);
}

#[test]
fn threads_are_read_from_headers() {
    let (mail, _) = read(
        "Message-ID: <c@x>\nIn-Reply-To: <b@x>\nReferences: <a@x>\n <b@x>\nSubject: Re: s\nX-Team:  blue\n  sky\n\nx",
    );
    assert_eq!(mail.message_id.as_deref(), Some("c@x"));
    assert_eq!(mail.references, ["a@x", "b@x", "b@x"]);
    let reader = MailReader::new(Quotes::Strip).with_header("X-Team");
    let mail = reader.read(b"X-Team:  blue\n  sky\n\nx", &mut Mended::default()).unwrap();
    assert_eq!(mail.header.as_deref(), Some("blue sky"));
}

#[test]
fn what_has_no_header_is_named() {
    for raw in ["", "\n\n", "just text without any header at all\nmore\n"] {
        let error = MailReader::new(Quotes::Strip).read(raw.as_bytes(), &mut Mended::default());
        assert!(error.is_err(), "{raw:?}: {error:?}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(
        lines in prop::collection::vec(prop::sample::select(vec![
            "Content-Type: multipart/mixed; boundary=XX", "Content-Type: multipart/alternative; boundary=\"Y\"",
            "Content-Type: text/html; charset=utf-16", "Content-Type: text/plain; charset=big5",
            "Content-Transfer-Encoding: base64", "Content-Transfer-Encoding: quoted-printable",
            "Content-Type: message/rfc822", "", "", "--XX", "--XX--", "--Y", "=C3=", "=ZZ", "aGk", "<b>&amp;<",
            "<blockquote>", "</blockquote", "-----Original Message-----", "From: a", "To: b", "Subject: c",
            "> quoted", "On a, b wrote:", "é\u{FFFD}", "-- ", "212 555 0100"]), 0..40),
        bytes in prop::collection::vec(any::<u8>(), 0..40), keep in any::<bool>(),
    ) {
        let mut raw = lines.join("\n").into_bytes();
        raw.extend(bytes);
        let reader = MailReader::new(if keep { Quotes::Keep } else { Quotes::Strip });
        if let Ok(mail) = reader.read(&raw, &mut Mended::default()) {
            let _ = corpus::mail::strip(&mail.text, &mut corpus::mail::Stripped::default());
        }
    }
}
