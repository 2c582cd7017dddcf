//! `autoreg bench scaling` and the plot of `autoreg bench serve`, through the built binary.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/http.rs"]
mod http;

use http::{Server, fixture};
use serde_json::Value;
use std::process::{Command, Output};

fn bench(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_autoreg")).arg("bench").args(words).output().unwrap()
}

#[test]
fn what_grows_is_counted_and_measured() {
    for (kv, bytes) in [("f32", 4.0), ("f16", 2.0)] {
        let words =
            ["scaling", &fixture("llama"), "--from", "16", "--to", "256", "--kv", kv, "--json"];
        let ran = bench(&words);
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let rows: Vec<Value> = serde_json::from_slice(&ran.stdout).unwrap();
        let contexts: Vec<u64> = rows.iter().map(|row| row["context"].as_u64().unwrap()).collect();
        assert_eq!(contexts, [16, 32, 64, 128, 256]);
        for row in &rows {
            let n = row["context"].as_u64().unwrap();
            // Two layers of four heads; two heads of six values for keys, and for values.
            assert_eq!(row["prefill_pairs"], 2 * 4 * n * (n + 1) / 2);
            assert_eq!(row["decode_pairs"], 2 * 4 * n);
            assert_eq!(row["kv_bytes"].as_f64().unwrap(), 2.0 * 2.0 * 12.0 * bytes * n as f64);
            // The model sees 128 tokens.
            assert_eq!(row["measured"].is_null(), n > 128);
            if n <= 128 {
                assert_eq!(row["measured"]["kv_bytes"], row["kv_bytes"], "counted is measured");
                assert!(row["measured"]["prefill_s"].as_f64().unwrap() > 0.0);
            }
            if n > 16 {
                let growth = &row["growth"];
                assert_eq!(
                    (&growth["decode_pairs"], &growth["kv_bytes"]),
                    (&2.0.into(), &2.0.into())
                );
                let four = growth["prefill_pairs"].as_f64().unwrap();
                assert!((4.0 - four - 4.0 / (n as f64 + 2.0)).abs() < 1e-9, "{four} at {n}");
            }
        }
        assert!(String::from_utf8_lossy(&ran.stderr).contains("from 256 on"));
    }
    let text = bench(&["scaling", &fixture("llama"), "--from", "16", "--to", "64", "--count"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("×3.88") && text.contains("×2.00"), "{text}");
    let empty = bench(&["scaling", &fixture("llama"), "--from", "64", "--to", "16"]);
    assert_eq!(empty.status.code(), Some(2));
}

#[test]
fn a_load_is_drawn() {
    let server = Server::start(&fixture("llama"), &[]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("load.svg");
    let url = format!("http://{}", server.address);
    let ran = bench(&[
        "serve",
        &url,
        "--rate",
        "20,60",
        "--clients",
        "2",
        "--requests",
        "8",
        "--prompt-tokens",
        "12",
        "--max-tokens",
        "5",
        "--plot",
        file.to_str().unwrap(),
        "--json",
    ]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let rows: Vec<Value> = serde_json::from_slice(&ran.stdout).unwrap();
    let svg = std::fs::read_to_string(&file).unwrap();
    // Three loads, three panels, three percentiles.
    assert_eq!((rows.len(), svg.matches("<circle").count()), (3, 27));
    assert_eq!(svg.matches("<polyline").count(), 9);
    for row in rows {
        let name = row["arrivals"].as_str().unwrap();
        let p50 = row["time_to_first_token"]["p50_ms"].as_f64().unwrap();
        let told = format!(
            "{name}: {:.1} tokens/s, p50 {p50:.1} ms",
            row["tokens_per_second"].as_f64().unwrap()
        );
        assert!(svg.contains(&told), "{told}");
    }
    for outside in ["http://", "<script", "url("] {
        let own = svg.replace("http://www.w3.org/2000/svg", "").replace(&url, "");
        assert!(!own.contains(outside), "{outside}");
    }
}
