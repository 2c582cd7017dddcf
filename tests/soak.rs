//! Mixed load with clients that leave, lie and dawdle: no page lost, no memory grown, no answer
//! changed, with a second model that guesses ahead. The short form runs with all tests; the long one:
//! `cargo test --test soak -- --ignored`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "what was compared is worth a line")]

#[path = "common/http.rs"]
mod http;

use http::{Server, fixture};
use kernels::mix;
use serde_json::{Value, json};
use std::io::Read;
use std::net::TcpStream;
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
    soak(Duration::from_secs(8));
}

#[test]
#[ignore = "ten minutes"]
fn a_long_soak() {
    soak(Duration::from_secs(600));
}

/// Reads a stream a few bytes at a time, with pauses.
fn sip(mut stream: TcpStream, turn: u64, until: Instant) -> usize {
    let (mut all, mut some, mut sips) = (0, [0; 48], 0);
    while let Ok(read @ 1..) = stream.read(&mut some) {
        (all, sips) = (all + read, sips + 1);
        if sips % 4 == 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(mix(turn ^ sips) % 40));
        }
    }
    all
}

fn soak(span: Duration) {
    let kinds = 12_u64;
    let quiet = Server::start(&fixture("llama"), &["--no-prefix-cache", "--threads", "1"]);
    let expected: Vec<Value> =
        (0..kinds).map(|i| quiet.good(PATH, &body(i))["choices"].clone()).collect();
    drop(quiet);
    let more =
        ["--kv-tokens", "136", "--page-tokens", "8", "--max-sequences", "6", "--step-tokens", "32"];
    let guesser = fixture("llama");
    let more = [&more[..], &["--draft", &guesser]].concat();
    let mut server = Server::start(&fixture("llama"), &more);
    // Once all of its kinds have been asked for, whatever grows has grown.
    std::thread::scope(|scope| {
        for i in 0..kinds * 3 {
            let server = &server;
            scope.spawn(move || drop(server.good(PATH, &body(i % kinds))));
        }
    });
    server.rest();
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
                            assert!(sip(stream, turn, until) > 100);
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
    let books = |ledger: &Value| -> Vec<Value> {
        let rows =
            ledger["terms"].as_array().unwrap().iter().filter(|row| row["name"] != "runtime");
        rows.map(|row| json!([row["name"], row["bytes"]])).collect()
    };
    assert_eq!(books(&before), books(&after), "the accounts are as they were");
    let bytes = |ledger: &Value| ledger["process_bytes"].as_u64().unwrap();
    let grown = bytes(&after).saturating_sub(bytes(&before));
    assert!(grown < 16 << 20, "the process grew by {grown} bytes");
    let answered = answered.into_inner();
    println!(
        "{answered} answers compared, {} sequences ended, {} preempted, {} of {} guesses held; the \
         process grew by {grown} bytes",
        server.figure("vllm:request_success_total"),
        server.figure("vllm:num_preemptions_total"),
        server.figure("vllm:spec_decode_num_accepted_tokens_total"),
        server.figure("vllm:spec_decode_num_draft_tokens_total"),
    );
    assert!(answered > 20 && server.figure("vllm:num_preemptions_total") > 0.0);
    assert!(server.figure("autoreg_request_errors_total") > 0.0);
    server.signal("-TERM");
    assert_eq!(server.ended(), Some(0));
}
