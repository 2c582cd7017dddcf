//! `autoreg diagnose`: what limits what was measured, what would change it, whether a change worked.

use crate::cmd::model::Opened;
use crate::cmd::{Kv, KvArgs, json, quality};
use crate::error::CliError;
use crate::term;
use clap::Args;
use engine::serving::NetworkExecutor;
use plan::diagnose::{
    Bits, Evidence, Quality, compare_knowing, comparison_page, diagnose_knowing, diagnosis_page,
};
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;
use train::SavedModel;

/// Arguments of `diagnose`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg diagnose http://127.0.0.1:8080          a live server: autoreg, vLLM or llama-server
  autoreg diagnose runs/t1                        a run folder of `autoreg train`
  autoreg diagnose runs/t1/ledger.json
  autoreg diagnose before.prom --after after.prom what changed, in milliseconds and bytes that add up
  autoreg diagnose http://127.0.0.1:8080 --original m-f16.gguf --instead m-q4.gguf --text mine.txt
  autoreg diagnose http://127.0.0.1:8080 --original m.gguf --kv q8 --text mine.txt
  autoreg diagnose f16.json --after q4.json --original m-f16.gguf --instead m-q4.gguf --text mine.txt
  autoreg plan train qwen3-8b --ranks 8 --json > plan.json; autoreg diagnose plan.json

It names one limiting resource (queue, prefill compute, decode bandwidth, K/V pool, activations, optimizer
state, logits, communication, data loading) with the figures that say so, then what to change in order of
predicted gain, then what would not help and why. A saved page of figures comes from `curl URL/metrics`.")]
pub struct DiagnoseArgs {
    /// A server's URL, a run folder, a ledger.json, a plan's JSON, metrics.jsonl or a saved page of
    /// figures
    #[arg(value_name = "URL|RUN|LEDGER|LOG")]
    source: String,
    /// A second one, after a change: what became of the first
    #[arg(long, value_name = "URL|RUN|LEDGER|LOG")]
    after: Option<String>,
    /// The model that runs, to measure what fewer bits cost before they are advised
    #[arg(long, value_name = "MODEL", requires_all = ["fewer", "text"])]
    original: Option<PathBuf>,
    /// The same model in fewer bits
    #[arg(long, value_name = "MODEL", group = "fewer", requires_all = ["original", "text"])]
    instead: Option<PathBuf>,
    /// Or the model itself with its keys and values in fewer bits: f16 or q8
    #[arg(long, value_enum, value_name = "KIND", group = "fewer", requires_all = ["original", "text"])]
    kv: Option<Kv>,
    /// Your own text, on which the two are compared: perplexity of both, divergence in nats a token
    #[arg(long, value_name = "FILE", requires_all = ["original", "fewer"])]
    text: Option<PathBuf>,
    /// A key that the server wants
    #[arg(long, value_name = "KEY", env = "AUTOREG_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Also write the diagnosis as one self-contained page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Longest that a server may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of a page of figures.
const MOST: u64 = 32 << 20;

/// Tokens of a window of the text that two models are compared on.
const WINDOW: usize = 128;
/// Tokens of that text that are read at most.
const MOST_TOKENS: usize = 8192;

/// Diagnoses as told.
pub fn run(args: &DiagnoseArgs) -> Result<(), CliError> {
    let key = args.api_key.as_deref();
    let evidence = open(&args.source, key)?;
    let quality = match (&args.original, &args.text) {
        (Some(original), Some(text)) => Some(weighed(args, original, text)?),
        _ => None,
    };
    let (text, value, page) = match &args.after {
        None => {
            let found = diagnose_knowing(&evidence, quality.as_ref()).map_err(CliError::input)?;
            (found.text(), json(&found)?, diagnosis_page(&evidence, &found))
        }
        Some(after) => {
            let after = open(after, key)?;
            let found = compare_knowing(&evidence, &after, quality).map_err(CliError::input)?;
            (found.text(), json(&found)?, comparison_page(&found))
        }
    };
    if let Some(path) = &args.html {
        write_page(path, &page)?;
    }
    term::print(if args.json { &value } else { &text });
    Ok(())
}

/// What a model costs in the place of another, or keys and values in fewer bits, on a text.
fn weighed(args: &DiagnoseArgs, original: &Path, text: &Path) -> Result<Quality, CliError> {
    let instead = args.instead.as_deref().unwrap_or(original);
    let kv = KvArgs { kv: args.kv.unwrap_or_default() };
    let (first, second) = (Opened::open(original)?, Opened::open_with(instead, kv.kind())?);
    let bits = if args.kv.is_some() { Bits::Kv } else { Bits::Weights };
    let bytes = |opened: &Opened| match bits {
        Bits::Weights => bytes(opened),
        Bits::Kv => NetworkExecutor::bytes_per_token(&opened.saved.config()),
    };
    let mut name = instead.display().to_string();
    args.kv.iter().for_each(|_| name += &format!(" with --kv {}", kv.kind().name()));
    if first.tokenizer.sha256() != second.tokenizer.sha256() {
        return Err(CliError::input(format!(
            "{} and {} have different tokenizers: their tokens cannot be compared",
            original.display(),
            instead.display()
        )));
    }
    let ask = quality::Ask { text, window: WINDOW, most: MOST_TOKENS, threads: None, quiet: true };
    let found = quality::measure(&first, &second, &ask)?;
    let [perplexity, perplexity_instead] = found.perplexities();
    Ok(Quality {
        original: original.display().to_string(),
        bits,
        instead: name,
        text: text.display().to_string(),
        tokens: found.tokens as u64,
        perplexity,
        perplexity_instead,
        divergence_nats: found.mean_kl(),
        same_best_share: found.same_top_share(),
        bytes: bytes(&first),
        bytes_instead: bytes(&second),
    })
}

/// Bytes of a model's weights in memory.
fn bytes(opened: &Opened) -> u64 {
    match &opened.saved {
        SavedModel::Network(model) => model.layout().weight_specs().total(),
        SavedModel::Counts(model) => model.bytes(),
    }
}

fn write_page(path: &Path, page: &str) -> Result<(), CliError> {
    formats::replace_file(path, |file| file.write_all(page.as_bytes())).map_err(|e| {
        CliError::input(format!("--html {}: {e}{}", path.display(), formats::hint(&e)))
    })
}

fn open(source: &str, key: Option<&str>) -> Result<Evidence, CliError> {
    if source.contains("://") {
        return live(source, key);
    }
    Evidence::open(Path::new(source)).map_err(CliError::input)
}

/// A live server's figures; of this program's own also its ledger.
fn live(url: &str, key: Option<&str>) -> Result<Evidence, CliError> {
    let (host, path) = parts(url)?;
    let text = get(url, &host, &path, key)?;
    let mut evidence = Evidence::of_text(url, &text).map_err(CliError::input)?;
    if text.contains("autoreg_memory_bytes")
        && let Ok(ledger) = get(url, &host, "/ledger", key)
        && let Ok(own) = Evidence::of_text(url, &ledger)
    {
        let (serving, source) = (evidence.serving, evidence.source);
        evidence = Evidence { serving, source, planned: Vec::new(), ..own };
    }
    Ok(evidence)
}

/// A page of the server of a URL, whatever the URL's own path.
pub fn page(url: &str, path: &str, key: Option<&str>) -> Result<String, CliError> {
    get(url, &parts(url)?.0, path, key)
}

/// `host:port` and path of a URL.
fn parts(url: &str) -> Result<(String, String), CliError> {
    let bad = || {
        CliError::input(format!(
            "{url}: expected http://HOST[:PORT] of a server (this client speaks no TLS), or a file"
        ))
    };
    let rest = url.strip_prefix("http://").ok_or_else(bad)?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let good = |c: char| c.is_ascii_alphanumeric() || ".:-_[]".contains(c);
    if host.is_empty() || !host.chars().all(good) || path.contains(char::is_whitespace) {
        return Err(bad());
    }
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let host = if has_port { host.to_owned() } else { format!("{host}:80") };
    let path = if path.is_empty() { "/metrics".to_owned() } else { format!("/{path}") };
    Ok((host, path))
}

/// The body of an answer with status 200.
fn get(url: &str, host: &str, path: &str, key: Option<&str>) -> Result<String, CliError> {
    let failed = |e: std::io::Error| {
        CliError::input(format!("{url}: {e}; is the server up, and is this its address?"))
    };
    let mut addresses = host.to_socket_addrs().map_err(failed)?;
    let none = || failed(std::io::ErrorKind::AddrNotAvailable.into());
    let address = addresses.next().ok_or_else(none)?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let key = key.filter(|key| !key.contains(['\r', '\n']));
    let key = key.map_or(String::new(), |key| format!("Authorization: Bearer {key}\r\n"));
    // The older version of the protocol: the answer ends where the connection does.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\nAccept: */*\r\n{key}\r\n");
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut bytes = Vec::new();
    stream.take(MOST).read_to_end(&mut bytes).map_err(failed)?;
    let text = String::from_utf8_lossy(&bytes);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return Err(CliError::input(format!("{url}: the answer is not HTTP")));
    };
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if status != "200" {
        return Err(CliError::input(format!("{url}: {path} answers with status {status}")));
    }
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let of = |url| parts(url).ok();
        let pair = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(of("http://a:8080"), pair("a:8080", "/metrics"));
        assert_eq!(of("http://a/"), pair("a:80", "/metrics"));
        assert_eq!(of("http://[::1]:9/x/y"), pair("[::1]:9", "/x/y"));
        for bad in ["https://a", "http://", "ftp://a", "http://a b", "http://a/b c\r\nX: y"] {
            assert!(
                parts(bad).is_err_and(|e| e.code == 2 && e.message.contains("http://")),
                "{bad}"
            );
        }
    }
}
