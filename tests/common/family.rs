//! The small model with a long context and the chat template of a family.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::http::{Server, fixture};
use serde_json::Value;
use std::path::Path;

/// A server of the small model with another template; `[TOOL_CALLS]` is a control token of it.
pub struct Family {
    pub server: Server,
    pub _folder: tempfile::TempDir,
}

/// The model with a template of `crates/chat/tests/templates`, or its own, which knows no tools.
pub fn family(template: Option<&str>) -> Family {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture("llama")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let edit = |name: &str, change: &dyn Fn(&mut Value)| {
        let path = folder.path().join(name);
        let mut value: Value =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        change(&mut value);
        std::fs::write(&path, value.to_string()).unwrap();
    };
    edit("config.json", &|config| config["max_position_embeddings"] = 4096.into());
    edit("tokenizer.json", &|tokenizer| {
        tokenizer["added_tokens"][2]["content"] = "[TOOL_CALLS]".into()
    });
    edit("tokenizer_config.json", &|config| {
        config.as_object_mut().unwrap().remove("pad_token");
    });
    if let Some(name) = template {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/chat/tests/templates");
        std::fs::copy(root.join(name), folder.path().join("chat_template.jinja")).unwrap();
    }
    let path = folder.path().to_str().unwrap().to_owned();
    let server = Server::start(&path, &["--threads", "1"]);
    Family { server, _folder: folder }
}
