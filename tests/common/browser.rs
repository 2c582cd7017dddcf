//! Pages in a headless Chromium: what became of them, and what the console said.
//!
//! Tests are skipped with a line where no Chromium is found; `AUTOREG_CHROMIUM` names one.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::print_stdout, reason = "a skipped test says so")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A browser with a profile of its own.
pub struct Browser {
    program: PathBuf,
    folder: tempfile::TempDir,
}

/// A page after its scripts have run.
#[derive(Debug)]
pub struct Loaded {
    /// The document as markup.
    pub dom: String,
    /// Lines of the console; a page of ours has none.
    pub console: Vec<String>,
}

impl Browser {
    /// The browser of this machine, if it has one.
    pub fn find() -> Option<Self> {
        let named = std::env::var_os("AUTOREG_CHROMIUM").map(PathBuf::from);
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let program = named.or_else(|| {
            std::env::split_paths(&folders)
                .flat_map(|folder| {
                    ["chromium", "chromium-browser", "google-chrome"].map(|n| folder.join(n))
                })
                .find(|path| path.is_file())
        });
        if program.is_none() {
            println!("skipped: no Chromium found; set AUTOREG_CHROMIUM");
        }
        Some(Self { program: program?, folder: tempfile::tempdir().unwrap() })
    }

    /// Loads a file.
    pub fn load(&self, file: &Path) -> Loaded {
        self.run(file, &[])
    }

    fn run(&self, file: &Path, more: &[&str]) -> Loaded {
        let run = Command::new(&self.program)
            .args(more)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
            ])
            .args(["--enable-logging=stderr", "--dump-dom"])
            .arg(format!("--user-data-dir={}", self.folder.path().join("profile").display()))
            .arg(format!("file://{}", file.display()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        let console = said.lines().filter(|line| line.contains(":CONSOLE"));
        Loaded {
            dom: String::from_utf8_lossy(&run.stdout).into_owned(),
            console: console.map(str::to_owned).collect(),
        }
    }

    /// Loads a copy of a page that runs a script of the test after its own: what a reader's hands
    /// would do. `say(text)` of that script is what [`Loaded::said`] reads.
    pub fn load_and(&self, file: &Path, script: &str) -> Loaded {
        self.load(&self.copy(file, script))
    }

    /// The same, for a script that goes on after the page is loaded: time passes as fast as the
    /// page's timers allow, and stands still while it waits for a server.
    pub fn load_and_wait(&self, file: &Path, script: &str) -> Loaded {
        self.run(&self.copy(file, script), &["--virtual-time-budget=30000"])
    }

    fn copy(&self, file: &Path, script: &str) -> PathBuf {
        let hands = format!(
            "<pre id=\"said\"></pre><script>const say = (text) => {{ \
             document.getElementById('said').textContent += text + '\\n'; }};\n{script}</script></body>"
        );
        let page = std::fs::read_to_string(file).unwrap();
        assert_eq!(page.matches("</body>").count(), 1);
        let copy = self.folder.path().join("copy.html");
        std::fs::write(&copy, page.replace("</body>", &hands)).unwrap();
        copy
    }
}

impl Loaded {
    /// What the test's own script said.
    pub fn said(&self) -> &str {
        let (_, after) = self.dom.split_once("<pre id=\"said\">").unwrap();
        after.split_once("</pre>").unwrap().0
    }
}
