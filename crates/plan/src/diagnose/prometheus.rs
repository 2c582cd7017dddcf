//! The text in which servers give their figures, and the names of two of them.

use super::evidence::Serving;

/// One figure.
struct Sample<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
}

/// Figures of a page, or the first line that is none.
fn samples(text: &str) -> Result<Vec<Sample<'_>>, String> {
    let mut all = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let sample = sample(line).ok_or_else(|| {
            let shown: String = line.chars().take(40).collect();
            format!("line {} is no figure: {shown:?}", number + 1)
        })?;
        all.push(sample);
    }
    Ok(all)
}

/// `name{labels} value [time]`.
fn sample(line: &str) -> Option<Sample<'_>> {
    let (head, labels, rest) = match line.split_once('{') {
        Some((head, rest)) => {
            let end = rest.rfind('}')?;
            (head, &rest[..end], &rest[end + 1..])
        }
        None => {
            let (head, rest) = line.split_once(char::is_whitespace)?;
            (head, "", rest)
        }
    };
    let good = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
    let name = head.trim();
    let value = rest.split_whitespace().next()?.parse::<f64>().ok()?;
    (!name.is_empty() && name.chars().all(good)).then_some(Sample { name, labels, value })
}

/// What a page of a server's figures says.
///
/// # Errors
/// What is wrong with the page and what was expected.
pub(super) fn serving(text: &str) -> Result<Serving, String> {
    let samples = samples(text)?;
    let known = |s: &&Sample<'_>| {
        ["vllm:", "llamacpp:", "autoreg_"].iter().any(|begin| s.name.starts_with(begin))
    };
    let odd = |s: &&Sample<'_>| !s.value.is_finite() || s.value < 0.0;
    if let Some(Sample { name, value, .. }) = samples.iter().filter(known).find(odd) {
        return Err(format!("{name} is {value}, expected a number of at least 0"));
    }
    let sum = |name: &str| -> Option<f64> {
        let mut of = samples.iter().filter(|s| s.name == name).map(|s| s.value).peekable();
        of.peek()?;
        Some(of.sum())
    };
    let kind = |name: &str, label: &str| -> f64 {
        let of = samples.iter().filter(|s| s.name == name && s.labels.contains(label));
        of.map(|s| s.value).sum()
    };
    let any = |names: &[&str]| names.iter().find_map(|name| sum(name)).unwrap_or(0.0);
    if samples.iter().any(|s| s.name.starts_with("vllm:")) {
        let requests = any(&["vllm:e2e_request_latency_seconds_count"]);
        let mean = |name: &str| any(&[&format!("vllm:{name}_sum")]) / requests.max(1.0);
        let steps = any(&["autoreg_step_sequences_count"]);
        let decode = "kind=\"decode\"";
        return Ok(Serving {
            requests,
            queue_s: mean("request_queue_time_seconds"),
            prefill_s: mean("request_prefill_time_seconds"),
            decode_s: mean("request_decode_time_seconds"),
            prompt_tokens: any(&["vllm:prompt_tokens_total"]) / requests.max(1.0),
            generated_tokens: any(&["vllm:generation_tokens_total"]) / requests.max(1.0),
            sequences_per_step: (steps > 0.0).then(|| any(&["autoreg_step_sequences_sum"]) / steps),
            decode_step_s: match kind("autoreg_step_seconds_count", decode) {
                0.0 => None,
                count => Some(kind("autoreg_step_seconds_sum", decode) / count),
            },
            running: any(&["vllm:num_requests_running"]),
            waiting: any(&["vllm:num_requests_waiting"]),
            kv_use: any(&["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"]),
            preemptions: any(&["vllm:num_preemptions_total"]),
            prefix_queries: any(&["vllm:prefix_cache_queries_total"]),
            prefix_hits: any(&["vllm:prefix_cache_hits_total"]),
        });
    }
    if samples.iter().any(|s| s.name.starts_with("llamacpp:")) {
        // It counts seconds and tokens, not requests: everything together is one.
        return Ok(Serving {
            requests: 1.0,
            queue_s: 0.0,
            prefill_s: any(&["llamacpp:prompt_seconds_total"]),
            decode_s: any(&["llamacpp:tokens_predicted_seconds_total"]),
            prompt_tokens: any(&["llamacpp:prompt_tokens_total"]),
            generated_tokens: any(&["llamacpp:tokens_predicted_total"]),
            sequences_per_step: sum("llamacpp:n_busy_slots_per_decode"),
            running: any(&["llamacpp:requests_processing"]),
            waiting: any(&["llamacpp:requests_deferred"]),
            kv_use: any(&["llamacpp:kv_cache_usage_ratio"]),
            ..Serving::default()
        });
    }
    let found = samples.first().map_or("nothing".to_owned(), |s| format!("{:?} first", s.name));
    Err(format!(
        "no figures of a server known here: expected names that begin with vllm: (autoreg and vLLM) \
         or llamacpp: (llama-server); found {found}"
    ))
}

/// Bytes by term that a page of this program's own server tells.
pub(super) fn own_terms(text: &str) -> Vec<(String, u64)> {
    let samples = samples(text).unwrap_or_default();
    let of = samples.iter().filter(|s| s.name == "autoreg_memory_bytes" && s.value > 0.0);
    let measured = of.filter(|s| s.labels.contains("kind=\"measured\""));
    let term = |labels: &str| Some(labels.split_once("term=\"")?.1.split_once('"')?.0.to_owned());
    measured.filter_map(|s| Some((term(s.labels)?, s.value as u64))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_figures_or_named() {
        let page = "# HELP a b\nvllm:num_requests_running{model_name=\"a} b\"} 2 17\nx 1e3\n\n";
        let all = samples(page).unwrap();
        assert_eq!((all[0].value, all[1].value), (2.0, 1000.0));
        let error = samples("ok 1\n<html>").err().unwrap();
        assert!(error.contains("line 2") && error.contains("<html>"), "{error}");
        assert!(serving("go_threads 7").unwrap_err().contains("go_threads"));
        assert!(serving("").unwrap_err().contains("found nothing"));
        for odd in ["NaN", "+Inf", "-3"] {
            let page = format!("other NaN\nvllm:num_requests_running {odd}\n");
            let error = serving(&page).unwrap_err();
            assert!(error.contains("vllm:num_requests_running is"), "{error}");
        }
    }

    #[test]
    fn llama_servers_names_are_known() {
        let page = "llamacpp:prompt_seconds_total 8\nllamacpp:tokens_predicted_seconds_total 2\n\
            llamacpp:requests_deferred 3\n";
        let s = serving(page).unwrap();
        assert_eq!((s.prefill_s, s.decode_s, s.waiting), (8.0, 2.0, 3.0));
    }
}
