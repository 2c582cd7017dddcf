//! `autoreg serve` over TLS, with a certificate that the test makes for itself.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/http.rs"]
mod http;

use http::{Server, fixture};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

struct Files {
    folder: tempfile::TempDir,
    certificate: rcgen::CertifiedKey<rcgen::KeyPair>,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let certificate = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(folder.path().join("cert.pem"), certificate.cert.pem()).unwrap();
        let key = certificate.signing_key.serialize_pem();
        std::fs::write(folder.path().join("key.pem"), key).unwrap();
        Self { folder, certificate }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }
}

fn client(
    files: Option<&Files>,
    address: &str,
) -> std::io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let mut roots = RootCertStore::empty();
    if let Some(files) = files {
        roots.add(files.certificate.cert.der().clone()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(address)?);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

fn ask(files: &Files, address: &str, path: &str, body: &str) -> String {
    let mut stream = client(Some(files), address).unwrap();
    let method = if body.is_empty() { "GET" } else { "POST" };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // A server that closes without the last word of TLS has sent all the same.
    drop(stream.read_to_end(&mut answer));
    String::from_utf8(answer).unwrap()
}

#[test]
fn answers_are_encrypted() {
    let files = Files::new();
    let (cert, key) = (files.path("cert.pem"), files.path("key.pem"));
    let server = Server::start(&fixture("llama"), &["--tls-cert", &cert, "--tls-key", &key]);
    let health = ask(&files, &server.address, "/health", "");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    let body = json!({ "prompt": "abc", "max_tokens": 5, "seed": 1, "stream": true }).to_string();
    let told = ask(&files, &server.address, "/v1/completions", &body);
    assert!(told.contains("data: [DONE]"), "{told}");
    // Nobody reads it who does not speak TLS, and nobody who does not know the certificate.
    let mut plain = TcpStream::connect(&server.address).unwrap();
    plain.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    drop(plain.read_to_end(&mut answer));
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    assert!(client(None, &server.address).is_err());
    // The server goes on, and ends in order.
    assert!(ask(&files, &server.address, "/health", "").contains("200 OK"));
    server.signal("-TERM");
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn files_that_do_not_fit_are_refused() {
    let (files, other) = (Files::new(), Files::new());
    std::fs::write(Path::new(&files.path("empty.pem")), "").unwrap();
    let refused = |cert: &str, key: &str, words: &[&str]| {
        let ran = Command::new(env!("CARGO_BIN_EXE_autoreg"))
            .args(["serve", &fixture("llama"), "--port", "0", "--tls-cert", cert, "--tls-key", key])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(2), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        assert_eq!(said.trim().lines().count(), 1, "{said}");
    };
    let (cert, key) = (files.path("cert.pem"), files.path("key.pem"));
    refused(&files.path("nowhere.pem"), &key, &["nowhere.pem", "certificates"]);
    refused(&files.path("empty.pem"), &key, &["empty.pem", "no certificate"]);
    refused(&cert, &cert, &["cert.pem", "private key"]);
    refused(&cert, &other.path("key.pem"), &["cert.pem", "key.pem", "its own key"]);
}
