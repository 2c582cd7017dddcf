//! What a template from somewhere may take. Alone in its program, whose allocator it needs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use chat::{ChatTemplate, Error, Message};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: ledger::Allocator = ledger::Allocator;

fn render(source: &str) -> Result<String, Error> {
    ChatTemplate::new(source, "<s>", "</s>").unwrap().render(&[Message::new("user", "hi")], true)
}

#[test]
fn a_template_that_grows_without_end_is_stopped() {
    for grows in [
        "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}\
         {{ n.s | list | length }}",
        "{% set n = namespace(s='a') %}{% for i in range(40) %}{% set n.s = [n.s, n.s] %}{% endfor %}\
         {{ n.s | tojson }}",
        "{{ ('a' * 99999).replace('a', 'a' * 99999) }}",
        "{{ range(99999) | join('a' * 99999) }}",
        "{{ 'x' | indent(10000000000, true) }}",
        "{% for i in range(99999) %}{{ 'a' * 99999999 }}{% endfor %}",
        "{% set s = 'a' * 9999999 %}{% for i in range(99999) %}{% set t = s ~ i %}{% endfor %}",
    ] {
        let start = Instant::now();
        let found = render(grows);
        assert_eq!(found, Err(Error::Boundless), "{grows}");
        assert!(start.elapsed() < Duration::from_secs(5), "{grows}");
    }
    let held = ledger::resident_bytes();
    assert!(held < 1 << 30, "{held} bytes are held");
}

#[test]
fn one_that_went_beyond_its_bounds_is_not_tried_again() {
    let grows = "{% for i in range(99999) %}{{ 'a' * 99999999 }}{% endfor %}";
    let template = ChatTemplate::new(grows, "", "").unwrap();
    let threads = || std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    let render = || template.render(&[Message::new("user", "hi")], true);
    assert_eq!(render(), Err(Error::Boundless));
    let before = threads();
    for _ in 0..20 {
        assert_eq!(render(), Err(Error::Boundless));
    }
    assert!(threads() < before + 20);
}

#[test]
fn others_are_as_before_and_their_faults_too() {
    assert_eq!(render("{{ 'a' * 20000000 }}").unwrap().len(), 20_000_000);
    assert_eq!(render("{{ messages[0].content }}!").unwrap(), "hi!");
    assert!(matches!(render("{{ raise_exception('no') }}"), Err(Error::Refused(_))));
    let calls_itself = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
    assert!(matches!(render(calls_itself), Err(Error::Failed(_))));
    let nested = "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}";
    assert!(matches!(render(nested), Err(Error::Failed(_))));
}
