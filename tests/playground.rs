//! The playground in a headless Chromium: load, type, stream, open a token, move a slider.

#[path = "common/browser.rs"]
mod browser;
#[path = "common/http.rs"]
mod http;

use browser::Browser;
use http::{Server, fixture};

const HANDS: &str = "
const wait = async (what, holds) => {
    for (let i = 0; i < 400 && !holds(); i++) await new Promise((go) => setTimeout(go, 25));
    say(what + ': ' + Boolean(holds()));
};
(async () => {
    await wait('ready', () => document.body.dataset.ready);
    $('mode').value = 'MODE';
    $('both').click();
    $('temperature_b').value = '0';
    $('max_tokens').value = '12';
    $('prompt').value = 'hello';
    $('form').requestSubmit();
    await wait('streamed', () => $('status').textContent === 'Done.');
    say('status: ' + $('status').textContent);
    say('tokens: ' + ($('out_a').children.length > 3 && $('out_b').children.length > 3));
    say('rules differ: ' + ($('out_a').textContent !== $('out_b').textContent));
    $('out_a').children[2].click();
    await wait('explained', () => document.body.dataset.explained === '2');
    const page = $('page').contentDocument;
    await wait('bars', () => page.getElementById('bars').children.length > 0);
    say('step: ' + page.getElementById('heading').textContent);
    const before = page.getElementById('bars').innerHTML;
    const slider = page.getElementById('temperature');
    slider.value = '3';
    slider.dispatchEvent(new Event('input'));
    await wait('redrawn', () => page.getElementById('bars').innerHTML !== before);
    await wait('ledger', () => $('memory').rows.length > 3);
    say('charts: ' + document.querySelectorAll('svg path').length);
    say('labels: ' + [...document.querySelectorAll('input, select, textarea')].every((e) => e.labels.length));
    say('the end');
})();";

#[test]
fn load_type_stream_open_a_token_move_a_slider() {
    let Some(browser) = Browser::find() else { return };
    let server = Server::start(&fixture("llama"), &["--cors-origin", "*"]);
    let served = server.get("/");
    assert_eq!(served.status, 200);
    assert!(served.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
    for word in ["http://", "https://", "src=", "@import", "url("] {
        let text = served.body.replace("http://www.w3.org/2000/svg", "");
        assert!(!text.contains(word), "the page asks nothing of others: {word}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("playground.html");
    // A file cannot reach a server without being told where it is.
    let here = format!("<body data-base=\"http://{}\">", server.address);
    assert_eq!(served.body.matches("<body>").count(), 1);
    std::fs::write(&file, served.body.replace("<body>", &here)).unwrap();
    for mode in ["completion", "chat"] {
        let loaded = browser.load_and_wait(&file, &HANDS.replace("MODE", mode));
        let said = loaded.said();
        for line in [
            "ready",
            "streamed",
            "tokens",
            "rules differ",
            "explained",
            "bars",
            "redrawn",
            "ledger",
            "labels",
        ] {
            assert!(said.contains(&format!("{line}: true\n")), "{mode}, {line}: {said}");
        }
        assert!(said.contains("charts: 3\n") && said.contains("the end\n"), "{said}");
        assert_eq!(loaded.console, Vec::<String>::new(), "{said}");
    }
}
