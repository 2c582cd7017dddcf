//! The Kubernetes chart: rendered by a renderer of the test, parsed, and held against itself and the
//! program. Helm and a cluster are not asked.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/helm.rs"]
mod helm;

use helm::Chart;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

fn chart(set: Value) -> Chart {
    Chart::open(&deploy().join("chart"), &set)
}

fn cases() -> Vec<Chart> {
    [
        json!({}),
        json!({ "router": { "enabled": false }, "scrape": false }),
        json!({ "autoscaling": { "enabled": true }, "image": { "tag": "dev" } }),
        json!({ "apiKeySecret": "keys", "args": ["--kv", "f16", "--draft-tokens", "4"], "replicas": 3,
            "drain": { "seconds": 120 } }),
    ]
    .into_iter()
    .map(chart)
    .collect()
}

fn of_kind<'a>(all: &'a [Value], kind: &str) -> Vec<&'a Value> {
    all.iter().filter(|one| one["kind"] == kind).collect()
}

fn pods(all: &[Value]) -> Vec<&Value> {
    ["StatefulSet", "Deployment"].iter().flat_map(|kind| of_kind(all, kind)).collect()
}

/// Whether a selector finds labels.
fn finds(selector: &Value, labels: &Value) -> bool {
    let wanted = selector.as_object().unwrap();
    !wanted.is_empty() && wanted.iter().all(|(key, value)| labels[key] == *value)
}

#[test]
fn what_belongs_together_is_called_alike() {
    for chart in cases() {
        let all = chart.documents();
        let mut names = BTreeSet::new();
        for one in &all {
            assert!(one["apiVersion"].is_string() && one["kind"].is_string(), "{one}");
            let name = one["metadata"]["name"].as_str().unwrap();
            assert!(names.insert((one["kind"].to_string(), name.to_owned())), "{name} twice");
            assert_eq!(one["metadata"]["labels"]["app.kubernetes.io/name"], "autoreg");
        }
        let pods = pods(&all);
        assert_eq!(pods.len(), if chart.values()["router"]["enabled"] == true { 2 } else { 1 });
        for pod in &pods {
            let (template, spec) = (&pod["spec"]["template"], &pod["spec"]["template"]["spec"]);
            assert!(finds(
                &pod["spec"]["selector"]["matchLabels"],
                &template["metadata"]["labels"]
            ));
            let container = &spec["containers"][0];
            let ports: Vec<&Value> =
                container["ports"].as_array().unwrap().iter().map(|p| &p["name"]).collect();
            assert_eq!(ports, ["http"]);
            let volumes: Vec<&Value> =
                spec["volumes"].as_array().unwrap().iter().map(|v| &v["name"]).collect();
            for mount in container["volumeMounts"].as_array().unwrap() {
                assert!(volumes.contains(&&mount["name"]), "{mount}");
            }
            assert_eq!(spec["automountServiceAccountToken"], false);
            assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        }
        for service in of_kind(&all, "Service") {
            let found = pods.iter().filter(|pod| {
                finds(&service["spec"]["selector"], &pod["spec"]["template"]["metadata"]["labels"])
            });
            assert_eq!(found.count(), 1, "{service}");
            assert_eq!(service["spec"]["ports"][0]["targetPort"], "http");
        }
        let set = of_kind(&all, "StatefulSet")[0];
        let governed = &set["spec"]["serviceName"];
        let services = of_kind(&all, "Service");
        let own = services.iter().find(|s| s["metadata"]["name"] == *governed).unwrap();
        assert_eq!(own["spec"]["clusterIP"], "None");
        assert_eq!(of_kind(&all, "PodDisruptionBudget")[0]["spec"]["maxUnavailable"], 1);
    }
}

#[test]
fn a_replica_has_time_to_end_what_it_began() {
    for chart in cases() {
        let all = chart.documents();
        let spec = &of_kind(&all, "StatefulSet")[0]["spec"]["template"]["spec"];
        let container = &spec["containers"][0];
        let stop = container["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap();
        let drain = chart.values()["drain"]["seconds"].as_u64().unwrap();
        let grace = spec["terminationGracePeriodSeconds"].as_u64().unwrap();
        assert!(stop > 0 && grace > stop + drain, "{grace} for {stop} and {drain}");
        let probe = |name: &str| container[name]["httpGet"]["path"].as_str().unwrap().to_owned();
        assert_eq!(probe("livenessProbe"), "/health");
        assert_eq!(probe("startupProbe"), "/health");
        // Draining is seen at the next probe.
        assert_eq!(probe("readinessProbe"), "/ready");
        assert_eq!(container["readinessProbe"]["failureThreshold"], 1);
        let startup = &container["startupProbe"];
        let patience = startup["periodSeconds"].as_u64().unwrap()
            * startup["failureThreshold"].as_u64().unwrap();
        assert_eq!(patience, 300);
        // The program understands its words: what is wrong is that there is no such model here.
        let words = container["args"].as_array().unwrap().iter().map(|w| w.as_str().unwrap());
        let ran = Command::new(env!("CARGO_BIN_EXE_autoreg"))
            .args(["serve", "--host", "0.0.0.0", "--port", "0"])
            .args(words.map(|word| word.replace("/keys/keys", file!())))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(said.contains("/models/") && !said.contains("Usage"), "{said}");
        assert_eq!(ran.status.code(), Some(2), "{said}");
    }
}

#[test]
fn replicas_follow_the_queue() {
    let all = chart(json!({ "autoscaling": { "enabled": true } })).documents();
    let scaler = of_kind(&all, "HorizontalPodAutoscaler")[0];
    let set = of_kind(&all, "StatefulSet")[0];
    assert_eq!(scaler["spec"]["scaleTargetRef"]["name"], set["metadata"]["name"]);
    assert!(set["spec"].get("replicas").is_none(), "the autoscaler alone says how many");
    let metric = scaler["spec"]["metrics"][0]["pods"]["metric"]["name"].as_str().unwrap();
    assert_eq!(metric.replace("vllm_", "vllm:"), "vllm:num_requests_waiting");
    let (least, most) = (&scaler["spec"]["minReplicas"], &scaler["spec"]["maxReplicas"]);
    assert!(least.as_u64() < most.as_u64());
    let all = chart(json!({})).documents();
    assert!(of_kind(&all, "HorizontalPodAutoscaler").is_empty());
}

/// The router says what the file says that `tests/replicas.rs` runs, but for its own places.
#[test]
fn the_router_is_the_one_that_is_tested() {
    let tested = std::fs::read_to_string(deploy().join("nginx.conf")).unwrap();
    let lines = |text: &str| -> BTreeSet<String> {
        let trimmed = text.lines().map(|line| line.trim().to_owned());
        trimmed.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
    };
    for (set, replicas) in [
        (json!({}), 2),
        (json!({ "replicas": 5 }), 5),
        (json!({ "autoscaling": { "enabled": true } }), 8),
    ] {
        let all = chart(set).documents();
        let own = of_kind(&all, "ConfigMap")[0]["data"]["nginx.conf"].as_str().unwrap();
        let own_lines = lines(own);
        let servers: Vec<&String> =
            own_lines.iter().filter(|line| line.starts_with("server chat-")).collect();
        assert_eq!(servers.len(), replicas);
        let name = "chat-replica-1.chat-replica.llm.svc.cluster.local:8080 resolve";
        assert!(servers.iter().any(|line| line.contains(name)), "{servers:?}");
        let places =
            ["server @", "listen", "pid", "_temp_path", "events", "proxy_next_upstream_tries"];
        for line in lines(&tested) {
            if !places.iter().any(|place| line.contains(place)) {
                assert!(own_lines.contains(&line), "{line} is missing in {own}");
            }
        }
    }
}
