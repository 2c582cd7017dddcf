//! The official `openai` client against the server; skipped where `scripts/setup-openai` was not run.

#[path = "common/family.rs"]
mod family;
#[path = "common/http.rs"]
mod http;

use http::{Server, fixture};
use std::path::Path;
use std::process::Command;

#[test]
fn the_official_client() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join(".venv-openai/bin/python");
    if !python.exists() {
        println!("skipped: no .venv-openai; run scripts/setup-openai");
        return;
    }
    let server = Server::start(&fixture("llama"), &[]);
    let done = Command::new(python)
        .arg(root.join("tests/clients/openai_client.py"))
        .args([&format!("http://{}/v1", server.address), "tiny"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    let failed = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}{failed}");
    assert_eq!(said.lines().filter(|line| line.starts_with("ok: ")).count(), 20, "{said}");
    server.rest();
}

#[test]
fn the_official_client_calls_tools() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join(".venv-openai/bin/python");
    if !python.exists() {
        println!("skipped: no .venv-openai; run scripts/setup-openai");
        return;
    }
    for template in [Some("qwen.jinja"), Some("llama3.jinja"), Some("mistral.jinja"), None] {
        let family::Family { server, _folder } = family::family(template);
        let done = Command::new(&python)
            .arg(root.join("tests/clients/openai_tools.py"))
            .args([&format!("http://{}/v1", server.address), "tiny"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        let failed = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{template:?}: {said}{failed}");
        assert_eq!(said.lines().filter(|line| line.starts_with("ok: ")).count(), 12, "{said}");
        server.rest();
    }
}
