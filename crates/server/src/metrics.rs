//! Figures for Prometheus. Where vLLM has a name for a thing, its name and buckets are used, so that
//! dashboards and gateways that know it work; the rest is under `autoreg_`.

use engine::serving::{Limits, StepReport};
use ledger::{Account, Plan};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

type Labels = Vec<(&'static str, String)>;
type Share = Gauge<f64, AtomicU64>;

/// Why a sequence ends: the words of `crate::call::reason`.
const REASONS: [&str; 3] = ["stop", "length", "abort"];

const FIRST_TOKEN: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const A_TOKEN: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
const A_REQUEST: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
const A_STEP: [f64; 13] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const STEP_TOKENS: [f64; 15] = [
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
    32768.0, 65536.0,
];
const TOKENS: [f64; 14] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0,
];

/// When the parts of a request began and ended, in seconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Phases {
    /// From the request's arrival to its first step.
    pub queue: f64,
    /// From its first step to its first token.
    pub prefill: f64,
    /// From its first token to its last.
    pub decode: f64,
    /// From arrival to the first token.
    pub first_token: f64,
    /// From arrival to the end.
    pub total: f64,
}

/// All figures of a server.
pub struct Metrics {
    registry: Mutex<Registry>,
    running: Gauge,
    waiting: Gauge,
    cache_use: Share,
    pages_held: Gauge,
    pages_kept: Gauge,
    evictions: Counter,
    preemptions: Counter,
    prefix_queries: Counter,
    prefix_hits: Counter,
    drafts: Counter,
    accepted_at: Family<Labels, Counter>,
    drafted: Counter,
    accepted: Counter,
    prompt_tokens: Counter,
    generation_tokens: Counter,
    success: Family<Labels, Counter>,
    errors: Family<Labels, Counter>,
    aborted: Counter,
    first_token: Histogram,
    inter_token: Histogram,
    per_token: Histogram,
    end_to_end: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    step_tokens: Histogram,
    step_sequences: Histogram,
    step_time: Family<Labels, Histogram, fn() -> Histogram>,
    request_prompt: Histogram,
    request_generation: Histogram,
    memory: Family<Labels, Gauge>,
    process: Family<Labels, Gauge>,
    /// Tokens guessed at a time, at most.
    places: usize,
}

fn step_histogram() -> Histogram {
    seconds(&A_STEP)
}

fn seconds(buckets: &[f64]) -> Histogram {
    Histogram::new(buckets.iter().copied())
}

impl Metrics {
    /// Figures at zero.
    #[must_use]
    pub fn new(model: &str, limits: &Limits) -> Self {
        let label = ("model_name".into(), model.to_owned().into());
        let mut registry = Registry::with_labels(std::iter::once(label));
        let config = Info::new(vec![
            ("block_size", limits.page_tokens.to_string()),
            ("num_gpu_blocks", limits.pages.to_string()),
            ("num_cpu_blocks", limits.pages.to_string()),
            ("enable_prefix_caching", limits.shares.to_string()),
        ]);
        registry.register("vllm:cache_config", "Page size and page count", config);
        macro_rules! register {
            ($name:literal, $help:literal, $metric:expr) => {{
                let metric = $metric;
                registry.register($name, $help, metric.clone());
                metric
            }};
        }
        let metrics = Self {
            running: register!("vllm:num_requests_running", "Sequences in steps", Gauge::default()),
            waiting: register!(
                "vllm:num_requests_waiting",
                "Sequences that wait",
                Gauge::default()
            ),
            cache_use: register!(
                "vllm:kv_cache_usage_perc",
                "Share of K/V pages that sequences hold, 0 to 1",
                Share::default()
            ),
            pages_held: register!(
                "autoreg_kv_pages_held",
                "K/V pages that sequences hold",
                Gauge::default()
            ),
            pages_kept: register!(
                "autoreg_kv_pages_kept",
                "Free K/V pages whose content is kept for others",
                Gauge::default()
            ),
            evictions: register!(
                "autoreg_kv_evictions",
                "Kept pages whose place was needed",
                Counter::default()
            ),
            preemptions: register!(
                "vllm:num_preemptions",
                "Sequences sent back to wait",
                Counter::default()
            ),
            prefix_queries: register!(
                "vllm:prefix_cache_queries",
                "Tokens looked for in the prefix cache",
                Counter::default()
            ),
            prefix_hits: register!(
                "vllm:prefix_cache_hits",
                "Tokens found in the prefix cache",
                Counter::default()
            ),
            drafts: register!(
                "vllm:spec_decode_num_drafts",
                "Times that tokens were guessed ahead",
                Counter::default()
            ),
            accepted_at: register!(
                "vllm:spec_decode_num_accepted_tokens_per_pos",
                "Tokens guessed ahead that came, by their place in the guess",
                Family::default()
            ),
            drafted: register!(
                "vllm:spec_decode_num_draft_tokens",
                "Tokens guessed ahead",
                Counter::default()
            ),
            accepted: register!(
                "vllm:spec_decode_num_accepted_tokens",
                "Tokens guessed ahead that came",
                Counter::default()
            ),
            prompt_tokens: register!("vllm:prompt_tokens", "Tokens of prompts", Counter::default()),
            generation_tokens: register!(
                "vllm:generation_tokens",
                "Tokens written",
                Counter::default()
            ),
            success: register!(
                "vllm:request_success",
                "Sequences ended, by reason",
                Family::default()
            ),
            errors: register!(
                "autoreg_request_errors",
                "Requests refused or failed, by status",
                Family::default()
            ),
            aborted: register!(
                "autoreg_request_aborted",
                "Requests whose client went away",
                Counter::default()
            ),
            first_token: register!(
                "vllm:time_to_first_token_seconds",
                "From a request's arrival to its first token",
                seconds(&FIRST_TOKEN)
            ),
            inter_token: register!(
                "vllm:inter_token_latency_seconds",
                "From a token to the next of its sequence",
                seconds(&A_TOKEN)
            ),
            per_token: register!(
                "vllm:request_time_per_output_token_seconds",
                "From the first token to the last, divided by the tokens after the first; once a request",
                seconds(&A_TOKEN)
            ),
            end_to_end: register!(
                "vllm:e2e_request_latency_seconds",
                "From a request's arrival to its last token",
                seconds(&A_REQUEST)
            ),
            queue: register!(
                "vllm:request_queue_time_seconds",
                "From a request's arrival to its first step",
                seconds(&A_REQUEST)
            ),
            prefill: register!(
                "vllm:request_prefill_time_seconds",
                "From a request's first step to its first token",
                seconds(&A_REQUEST)
            ),
            decode: register!(
                "vllm:request_decode_time_seconds",
                "From a request's first token to its last",
                seconds(&A_REQUEST)
            ),
            inference: register!(
                "vllm:request_inference_time_seconds",
                "From a request's first step to its last token",
                seconds(&A_REQUEST)
            ),
            step_tokens: register!(
                "vllm:iteration_tokens_total",
                "Tokens of a step",
                seconds(&STEP_TOKENS)
            ),
            step_sequences: register!(
                "autoreg_step_sequences",
                "Sequences of a step",
                seconds(&TOKENS)
            ),
            step_time: register!(
                "autoreg_step_seconds",
                "A step, by what it ran: decode, prefill, or both (mixed)",
                Family::new_with_constructor(step_histogram as fn() -> Histogram)
            ),
            request_prompt: register!(
                "vllm:request_prompt_tokens",
                "Tokens of a prompt",
                seconds(&TOKENS)
            ),
            request_generation: register!(
                "vllm:request_generation_tokens",
                "Tokens of an answer",
                seconds(&TOKENS)
            ),
            memory: register!(
                "autoreg_memory_bytes",
                "Bytes by term, predicted before the start and measured now",
                Family::default()
            ),
            process: register!(
                "autoreg_process_bytes",
                "Resident size of the process, now and at its peak",
                Family::default()
            ),
            places: limits.drafts,
            registry: Mutex::new(registry),
        };
        // From the start, at zero: a rate over a series that appears with its first event misses it.
        for reason in REASONS {
            drop(metrics.success.get_or_create(&vec![("finished_reason", reason.to_owned())]));
        }
        metrics
    }

    /// A step has run.
    pub fn step(&self, report: &StepReport, took: Duration) {
        self.running.set(report.running as i64);
        self.waiting.set(report.waiting as i64);
        self.pages_held.set(report.pages_held as i64);
        self.pages_kept.set(report.pages_kept as i64);
        self.cache_use.set(report.pages_held as f64 / report.pages.max(1) as f64);
        raise(&self.evictions, report.evictions);
        raise(&self.preemptions, report.totals.preemptions);
        raise(&self.prefix_queries, report.totals.queried);
        raise(&self.prefix_hits, report.totals.hit);
        raise(&self.drafts, report.totals.drafts);
        raise(&self.drafted, report.totals.drafted);
        for (place, &count) in report.totals.accepted_at.iter().enumerate().take(self.places) {
            let labels = vec![("position", place.to_string())];
            raise(&self.accepted_at.get_or_create(&labels), count);
        }
        raise(&self.accepted, report.totals.accepted);
        let kind = match (report.decode_rows, report.prefill_rows) {
            (0, 0) => return,
            (_, 0) => "decode",
            (0, _) => "prefill",
            _ => "mixed",
        };
        self.step_tokens.observe((report.decode_rows + report.prefill_rows) as f64);
        self.step_sequences.observe(report.work.len() as f64);
        let labels = vec![("kind", kind.to_owned())];
        self.step_time.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Pages that sequences hold, and free ones whose content is kept.
    #[must_use]
    pub fn pages(&self) -> (i64, i64) {
        (self.pages_held.get(), self.pages_kept.get())
    }

    /// A token came, so long after the one before it.
    pub fn token(&self, since_last: Option<f64>) {
        self.generation_tokens.inc();
        if let Some(seconds) = since_last {
            self.inter_token.observe(seconds);
        }
    }

    /// The first token of a request came.
    pub fn first_token(&self, seconds: f64) {
        self.first_token.observe(seconds);
    }

    /// A sequence ended.
    pub fn ended(&self, reason: &str) {
        self.success.get_or_create(&vec![("finished_reason", reason.to_owned())]).inc();
    }

    /// A request ended.
    pub fn request(&self, prompt: usize, generated: usize, sequences: usize, phases: &Phases) {
        self.prompt_tokens.inc_by(prompt as u64);
        self.request_prompt.observe(prompt as f64);
        self.request_generation.observe(generated as f64);
        self.end_to_end.observe(phases.total);
        self.queue.observe(phases.queue);
        self.prefill.observe(phases.prefill);
        self.decode.observe(phases.decode);
        self.inference.observe(phases.prefill + phases.decode);
        let after_first = generated as f64 / sequences.max(1) as f64 - 1.0;
        if after_first > 0.0 {
            self.per_token.observe(phases.decode / after_first);
        }
    }

    /// A request was refused or failed.
    pub fn error(&self, status: u16) {
        self.errors.get_or_create(&vec![("status", status.to_string())]).inc();
    }

    /// A client went away before its answer was there.
    pub fn aborted(&self) {
        self.aborted.inc();
    }

    /// All of it as Prometheus reads it.
    #[must_use]
    pub fn text(&self, plan: &Plan) -> String {
        let measured = ledger::snapshot().current;
        for account in Account::ALL {
            for (kind, bytes) in
                [("predicted", plan.of(account)), ("measured", measured[account as usize])]
            {
                let labels = vec![("term", account.name().to_owned()), ("kind", kind.to_owned())];
                self.memory.get_or_create(&labels).set(bytes.cast_signed());
            }
        }
        for (kind, bytes) in [("now", ledger::resident_bytes()), ("peak", ledger::peak_bytes())] {
            self.process.get_or_create(&vec![("kind", kind.to_owned())]).set(bytes.cast_signed());
        }
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A text takes all that is written to it.
        let _ = encode(&mut text, &registry);
        text
    }
}

/// Lifts a counter to a total that is counted elsewhere.
fn raise(counter: &Counter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}
