//! Two replicas behind nginx on loopback: one is killed, one is drained, under load, and every
//! request is answered. Skipped where there is no nginx.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/http.rs"]
mod http;

use http::{Answer, Server, fixture, read, send};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

struct Nginx {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Quick and orderly: its worker ends with it.
        drop(Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status());
        drop(self.child.wait());
    }
}

fn program() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&folders).collect();
    places.push("/usr/sbin".into());
    places.into_iter().map(|folder| folder.join("nginx")).find(|path| path.is_file())
}

impl Nginx {
    /// The file of `deploy/`, filled in.
    fn start(program: &Path, first: &str, second: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/nginx.conf");
        let text = std::fs::read_to_string(file)
            .unwrap()
            .replace("@RUN@", folder.path().to_str().unwrap())
            .replace("@FIRST@", first)
            .replace("@SECOND@", second)
            .replace("@LISTEN@", &address);
        let config = folder.path().join("nginx.conf");
        std::fs::write(&config, text).unwrap();
        let child = Command::new(program)
            .arg("-p")
            .arg(folder.path())
            .arg("-c")
            .arg(&config)
            .args(["-e", "stderr", "-g", "daemon off;"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let nginx = Self { child, address, _folder: folder };
        let until = Instant::now() + Duration::from_secs(10);
        while std::net::TcpStream::connect(&nginx.address).is_err() {
            assert!(Instant::now() < until, "nginx does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        nginx
    }

    fn post(&self, head: &str, body: &Value) -> Answer {
        let text = body.to_string();
        read(send(&self.address, "POST", "/v1/completions", head, text.as_bytes()))
    }
}

/// Tells the clients to stop, also when the test fails before it would.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn body(i: usize) -> Value {
    json!({ "prompt": format!("question {}", i % 5), "seed": i % 5, "max_tokens": 60, "ignore_eos": true })
}

#[test]
fn a_replica_may_go_and_nothing_is_lost() {
    let Some(program) = program() else {
        println!("skipped: no nginx found");
        return;
    };
    let servers: Vec<Server> = (0..3).map(|_| Server::start(&fixture("llama"), &[])).collect();
    let expected: Vec<Value> =
        (0..5).map(|i| servers[2].good("/v1/completions", &body(i))["choices"].clone()).collect();
    for signal in ["-KILL", "-TERM"] {
        let mut pair: Vec<Server> = (0..2).map(|_| Server::start(&fixture("llama"), &[])).collect();
        let nginx = Nginx::start(&program, &pair[0].address, &pair[1].address);
        let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for client in 0..4 {
                let (nginx, expected, stop, answered) = (&nginx, &expected, &stop, &answered);
                scope.spawn(move || {
                    let mut i = client;
                    while !stop.load(Ordering::Relaxed) {
                        i += 7;
                        let key = format!("X-Prefix-Key: {i}\r\n");
                        let answer = nginx.post(&key, &body(i));
                        assert_eq!(answer.status, 200, "{answer:?}");
                        assert_eq!(answer.json()["choices"], expected[i % 5]);
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let reached = |count: usize| {
                let until = Instant::now() + Duration::from_secs(20);
                while answered.load(Ordering::Relaxed) < count && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(5));
                }
            };
            let clients = Stop(&stop);
            reached(30);
            let both = pair.iter().all(|s| s.figure("vllm:request_success_total") > 0.0);
            let gone = pair.remove(0);
            gone.signal(signal);
            let code = gone.ended();
            reached(120);
            drop(clients);
            assert!(both, "both replicas had work");
            assert_eq!(code, if signal == "-TERM" { Some(0) } else { None });
        });
        assert!(answered.into_inner() >= 120);
    }
}

#[test]
fn a_key_stays_with_its_replica() {
    let Some(program) = program() else {
        println!("skipped: no nginx found");
        return;
    };
    let pair: Vec<Server> = (0..2).map(|_| Server::start(&fixture("llama"), &[])).collect();
    let nginx = Nginx::start(&program, &pair[0].address, &pair[1].address);
    let text = "a conversation that is long enough to fill some pages of the cache";
    let asked = json!({ "prompt": text, "max_tokens": 2, "temperature": 0 });
    for _ in 0..6 {
        assert_eq!(nginx.post("X-Prefix-Key: mine\r\n", &asked).status, 200);
    }
    let done: Vec<f64> = pair.iter().map(|s| s.figure("vllm:request_success_total")).collect();
    assert!(done.contains(&6.0) && done.contains(&0.0), "one of them has answered all: {done:?}");
}

#[test]
fn the_dashboard_names_figures_that_there_are() {
    let server = Server::start(&fixture("llama"), &[]);
    server.good("/v1/completions", &body(1));
    assert_eq!(server.post("/v1/completions", &json!({ "n": 0 })).status, 400);
    let figures = server.get("/metrics").body;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/grafana.json");
    let board: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut seen = 0;
    for target in targets {
        let text = target["expr"].as_str().unwrap();
        let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
        for name in words.filter(|w| w.starts_with("vllm:") || w.starts_with("autoreg_")) {
            let at_line = |line: &str| line.starts_with(&format!("{name}{{"));
            assert!(figures.lines().any(at_line), "{name} is not among the figures");
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
}
