//! Mixed load with clients that leave, lie and dawdle: no page lost, no memory grown, no answer
//! changed. `AUTOREG_SOAK_SECONDS` makes it longer.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/http.rs"]
mod http;

use http::{Server, fixture, read};
use kernels::mix;
use serde_json::{Value, json};
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PATH: &str = "/v1/completions";

fn body(i: u64) -> Value {
    let random = |what: u64| mix(i << 8 | what);
    json!({
        "prompt": format!("{}{i}", "the same beginning ".repeat(random(0) as usize % 4)),
        "max_tokens": 1 + random(1) % 40, "temperature": (random(2) % 4) as f64 * 0.5,
        "seed": i, "n": 1 + random(3) % 2, "logprobs": 1,
    })
}

#[test]
fn a_short_soak() {
    let seconds = std::env::var("AUTOREG_SOAK_SECONDS").ok().and_then(|s| s.parse().ok());
    let span = Duration::from_secs(seconds.unwrap_or(8));
    let kinds = 12_u64;
    let quiet = Server::start(&fixture("llama"), &["--no-prefix-cache", "--threads", "1"]);
    let expected: Vec<Value> =
        (0..kinds).map(|i| quiet.good(PATH, &body(i))["choices"].clone()).collect();
    drop(quiet);
    let more =
        ["--kv-tokens", "400", "--page-tokens", "8", "--max-sequences", "6", "--step-tokens", "32"];
    let mut server = Server::start(&fixture("llama"), &more);
    (0..kinds).for_each(|i| drop(server.good(PATH, &body(i))));
    let before = server.get("/ledger").json();
    let (until, answered) = (Instant::now() + span, AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for client in 0..6_u64 {
            let (server, expected, answered) = (&server, &expected, &answered);
            scope.spawn(move || {
                let mut turn = client << 32;
                while Instant::now() < until {
                    turn += 1;
                    let kind = mix(turn) % kinds;
                    let asked = body(kind);
                    match mix(turn ^ 99) % 8 {
                        0 => {
                            let mut left = asked;
                            left["stream"] = true.into();
                            let text = left.to_string();
                            let mut stream = server.send("POST", PATH, "", text.as_bytes());
                            let mut some = vec![0; (mix(turn ^ 7) % 900) as usize + 1];
                            drop(stream.read(&mut some));
                        }
                        1 => drop(server.send("POST", PATH, "", asked.to_string().as_bytes())),
                        2 => {
                            let mut text = asked.to_string().into_bytes();
                            let at = mix(turn ^ 5) as usize % text.len();
                            text[at] = mix(turn ^ 3) as u8;
                            let status = server.ask("POST", PATH, "", &text).status;
                            assert!([200, 400, 404].contains(&status), "{status}");
                        }
                        3 => {
                            let mut slow = asked.clone();
                            slow["stream"] = true.into();
                            let text = slow.to_string();
                            let stream = server.send("POST", PATH, "", text.as_bytes());
                            std::thread::sleep(Duration::from_millis(mix(turn ^ 6) % 120));
                            assert!(!read(stream).pieces().is_empty());
                        }
                        _ => {
                            let answer = server.good(PATH, &asked);
                            assert_eq!(answer["choices"], expected[kind as usize]);
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    assert!(server.is_up());
    server.rest();
    let after = server.get("/ledger").json();
    assert_eq!(before["terms"], after["terms"], "the accounts are as they were");
    let bytes = |ledger: &Value| ledger["process_bytes"].as_u64().unwrap();
    let grown = bytes(&after).saturating_sub(bytes(&before));
    assert!(grown < 16 << 20, "the process grew by {grown} bytes");
    assert!(answered.into_inner() > 20);
    assert_eq!(server.figure("autoreg_request_errors_total") as u64 > 0, true);
    server.signal("-TERM");
    assert_eq!(server.ended(), Some(0));
}
