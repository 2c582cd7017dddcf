//! Requests made out of `/openapi.json` by schemathesis, valid and broken: never a 500, never a body
//! that the document does not promise. Skipped where `scripts/setup-schemathesis` was not run.
//! `AUTOREG_FUZZ_EXAMPLES` makes more of them.

#[path = "common/http.rs"]
mod http;

use http::{Server, fixture};
use serde_json::json;
use std::path::Path;
use std::process::Command;

#[test]
fn nothing_that_the_document_allows_breaks_the_server() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = root.join(".venv-schemathesis/bin/st");
    if !program.exists() {
        println!("skipped: no .venv-schemathesis; run scripts/setup-schemathesis");
        return;
    }
    let examples = std::env::var("AUTOREG_FUZZ_EXAMPLES").unwrap_or_else(|_| "40".to_owned());
    let mut server = Server::start(&fixture("llama"), &["--draft-tokens", "3"]);
    let folder = tempfile::tempdir().unwrap();
    let ran = Command::new(program)
        .current_dir(folder.path())
        .args(["run", &format!("http://{}/openapi.json", server.address)])
        .args(["--checks", "not_a_server_error,status_code_conformance,content_type_conformance"])
        .args(["--checks", "response_schema_conformance"])
        .args(["--phases", "examples,coverage,fuzzing", "--max-examples", &examples])
        .args(["--workers", "2", "--seed", "7", "--no-color", "--continue-on-failure"])
        .args(["--request-timeout", "60", "--warnings", "off", "--no-shrink"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    // What it asked for is over, and the next request is answered as ever.
    server.rest();
    assert!(server.is_up());
    let body = json!({ "prompt": "abc", "max_tokens": 3, "temperature": 0 });
    assert_eq!(server.post("/v1/completions", &body).status, 200);
}
