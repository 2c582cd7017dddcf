//! Figures of other tools through the binary: `plan train ... --as`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{autoreg, json, works};
use serde_json::Value;

const GIB: f64 = 1_073_741_824.0;

fn told(words: &str) -> Value {
    let words: Vec<&str> = ["plan", "train"].into_iter().chain(words.split(' ')).collect();
    json(&words)
}

/// Within what was published to so many decimals.
#[track_caller]
fn near(found: &Value, unit: f64, published: f64, decimals: i32) {
    let found = found.as_f64().unwrap() / unit;
    let half = 0.5 * 10f64.powi(-decimals) + 1e-9;
    assert!((found - published).abs() <= half, "{found}, published {published}");
}

#[test]
fn deepspeeds_estimators_of_a_number_of_parameters() {
    // Device GiB and, where published, the host's.
    for (words, device, host) in [
        ("2851e6 --zero 2 --ranks 8", 15.93, None),
        ("2851e6 --zero 2 --ranks 8 --offload", 5.31, None),
        ("2851e6 --zero 3 --ranks 8 --largest-layer 32e6", 6.09, None),
        ("2851e6 --zero 3 --ranks 8 --largest-layer 32e6 --offload", 0.78, None),
        ("6805e6 --zero 3 --ranks 4 --largest-layer 131e6", 29.01, None),
        ("6805e6 --zero 3 --ranks 4 --largest-layer 131e6 --offload", 3.66, Some(152.1)),
        ("6805e6 --zero 3 --ranks 4 --largest-layer 131e6 --offload=all", 0.49, Some(171.1)),
        ("2849e6 --zero 3 --ranks 1 --largest-layer 65e6", 48.00, None),
        ("2849e6 --zero 3 --ranks 1 --largest-layer 65e6 --offload=optimizer", 5.55, None),
    ] {
        let found = told(&format!("{words} --as deepspeed"));
        near(&found["total_bytes"], GIB, device, 2);
        assert!(found["host_bytes"].is_u64(), "{found}");
        host.iter().for_each(|&host| near(&found["host_bytes"], GIB, host, 1));
    }
    let t5 = told("737.67e6 --zero 3 --ranks 4 --largest-layer 32.90e6 --as deepspeed");
    near(&t5["total_bytes"], GIB / 1024.0, 3291.0, 0);
}

#[test]
fn a_models_own_largest_layer_is_used_unless_another_is_given() {
    let words = "qwen3-8b --as deepspeed --zero 3 --ranks 8";
    let own = told(words);
    // The table of 151,936 words is larger than a layer.
    assert_eq!(own, told(&format!("{words} --largest-layer 622329856")));
    let less = told(&format!("{words} --largest-layer 192946432"));
    let apart = own["total_bytes"].as_f64().unwrap() - less["total_bytes"].as_f64().unwrap();
    assert!((apart - 4.0 * (622_329_856.0 - 192_946_432.0)).abs() <= 1.0, "{apart}");
    let text = works(&["plan", "train", "7e9", "--as", "deepspeed", "--zero", "2", "--ranks", "4"]);
    assert!(text.out.contains("no activations") && text.out.contains("host's memory"));
}

#[test]
fn what_an_estimator_lacks_is_asked_for() {
    for (words, said) in [
        ("7e9 --as deepspeed --zero 3 --ranks 4", &["--largest-layer N", "model's name"][..]),
        ("7e9 --as deepspeed --zero 3 --largest-layer 8e9", &["--largest-layer is", "7000000000"]),
        ("7e9 --as deepspeed --zero 3 --largest-layer big", &["131e6"]),
        ("7e9 --as deepspeed --zero 2 --offload=all", &["stage 2 keeps weights"]),
        ("7e9 --as deepspeed --zero 1", &["stages 2 and 3"]),
        ("7e9 --as eleuther", &["a model's shape"]),
    ] {
        let words: Vec<&str> = ["plan", "train"].into_iter().chain(words.split(' ')).collect();
        autoreg(&words).refused(2, said);
    }
}

#[test]
fn a_number_of_parameters_has_states_alone() {
    let found = told("8190735360");
    near(&found["total_bytes"], GIB, 137.308, 3);
    near(&told("8190735360 --zero 3 --ranks 8")["total_bytes"], GIB, 17.16, 2);
    let stage_2 = told("8.190735360B --zero 2 --ranks 8 --budget 24GiB");
    near(&stage_2["total_bytes"], GIB, 30.51, 2);
    assert_eq!(stage_2["fits"], false);
    assert_eq!(stage_2["levers"][0]["change"], "--zero 3");
    assert_eq!(stage_2["ranks"].as_array().unwrap().len(), 8);
    let named = told("qwen3-8b --zero 2 --ranks 8");
    let key = "communication_bytes_per_step";
    assert_eq!(stage_2[key], named[key]);
    let text = works(&["plan", "train", "7e9"]).out;
    assert!(text.contains("says nothing of activations"), "{text}");
}
