//! The table of ARCHITECTURE.md against the workspace: who may import whom, and who may be unsafe.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The crates that may hold unsafe code.
const UNSAFE: [&str; 2] = ["kernels", "ledger"];

/// What may be imported by a crate.
#[derive(Debug, PartialEq)]
enum Allowed {
    Everything,
    Crates(BTreeSet<String>),
}

/// A crate's name without what all share; the root package is `cli`.
fn short(name: &str) -> String {
    match name.strip_prefix("autoreg-") {
        Some(rest) => rest.to_owned(),
        None if name == "autoreg" => "cli".to_owned(),
        None => name.to_owned(),
    }
}

/// Crates of the workspace: name, manifest, those of ours that it imports.
fn crates() -> BTreeMap<String, (PathBuf, BTreeSet<String>)> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let imports = |package: &Value| {
        let all = package["dependencies"].as_array().unwrap().iter();
        let ours = all.filter(|d| d["kind"].is_null() && d["path"].is_string());
        ours.map(|d| short(d["name"].as_str().unwrap())).collect()
    };
    let packages = metadata["packages"].as_array().unwrap().iter();
    let row = |package: &Value| {
        let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap());
        (short(package["name"].as_str().unwrap()), (manifest, imports(package)))
    };
    packages.map(row).collect()
}

/// The rows between the two marks. A cell of imports is `-`, `everything`, or names with commas.
fn table(text: &str) -> Result<BTreeMap<String, Allowed>, String> {
    let (_, rest) = text.split_once("<!-- imports -->").ok_or("no line <!-- imports -->")?;
    let (inside, _) = rest.split_once("<!-- /imports -->").ok_or("no line <!-- /imports -->")?;
    let lines = inside.lines().filter(|line| line.trim_start().starts_with('|')).skip(2);
    let mut rows = BTreeMap::new();
    for line in lines {
        let cells: Vec<String> = line.trim().trim_matches('|').split('|').map(clean).collect();
        let [name, imports, _] = cells.as_slice() else {
            return Err(format!("expected three cells: {line}"));
        };
        let name = short(name.split_whitespace().next().unwrap_or_default());
        let allowed = match imports.as_str() {
            "-" => Allowed::Crates(BTreeSet::new()),
            "everything" => Allowed::Everything,
            names => Allowed::Crates(names.split(',').map(|n| short(n.trim())).collect()),
        };
        if rows.insert(name.clone(), allowed).is_some() {
            return Err(format!("two rows for {name}"));
        }
    }
    Ok(rows)
}

fn clean(cell: &str) -> String {
    cell.replace(['`', '*'], "").trim().to_owned()
}

/// What table and workspace do not agree on.
fn faults(
    table: &BTreeMap<String, Allowed>,
    crates: &BTreeMap<String, BTreeSet<String>>,
) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, imports) in crates {
        match table.get(name) {
            None => faults.push(format!("{name} has no row")),
            Some(Allowed::Everything) => {}
            Some(Allowed::Crates(allowed)) => faults.extend(
                imports.difference(allowed).map(|other| format!("{name} may not import {other}")),
            ),
        }
    }
    for (name, allowed) in table {
        if !crates.contains_key(name) {
            faults.push(format!("the row {name} has no crate"));
        }
        if let Allowed::Crates(allowed) = allowed {
            let unknown = allowed.iter().filter(|other| !crates.contains_key(*other));
            faults.extend(unknown.map(|other| format!("the row {name} names {other}: no crate")));
        }
    }
    faults
}

#[test]
fn crates_import_what_the_table_allows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("ARCHITECTURE.md");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let table = table(&text).unwrap();
    let imports = crates().into_iter().map(|(name, (_, imports))| (name, imports)).collect();
    let faults = faults(&table, &imports);
    assert!(faults.is_empty(), "ARCHITECTURE.md and the manifests differ:\n{}", faults.join("\n"));
}

#[test]
fn a_table_that_lies_is_noticed() {
    let text = "<!-- imports -->\n| crate | may import | must never know |\n|---|---|---|\n\
        | `a` | - | b |\n| `b` (the middle) | `a`, `gone` | - |\n| old | a | - |\n\
        | cli | everything | - |\n<!-- /imports -->";
    let set = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let crates = [
        ("a", set(&["b"])),
        ("b", set(&["a"])),
        ("cli", set(&["a", "b"])),
        ("new", BTreeSet::new()),
    ];
    let crates = crates.into_iter().map(|(name, imports)| (name.to_owned(), imports)).collect();
    assert_eq!(
        faults(&table(text).unwrap(), &crates),
        [
            "a may not import b",
            "new has no row",
            "the row b names gone: no crate",
            "the row old has no crate",
        ]
    );
    assert!(table("| crate | may import | must never know |").is_err());
}

/// `forbid` cannot be lifted by an attribute, so the manifests alone tell.
#[test]
fn unsafe_code_has_two_rooms() {
    let read =
        |path: &Path| -> toml::Table { std::fs::read_to_string(path).unwrap().parse().unwrap() };
    let lint = |table: &toml::Table, keys: &[&str]| -> Option<toml::Value> {
        let (first, rest) = keys.split_first()?;
        rest.iter().try_fold(table.get(*first)?.clone(), |value, key| value.get(key).cloned())
    };
    let forbids = Some(toml::Value::from("forbid"));
    let root = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
    assert_eq!(lint(&root, &["workspace", "lints", "rust", "unsafe_code"]), forbids);
    for (name, (manifest, _)) in crates() {
        let own = read(&manifest);
        let forbidden = lint(&own, &["lints", "workspace"]) == Some(true.into())
            || lint(&own, &["lints", "rust", "unsafe_code"]) == forbids;
        assert_eq!(forbidden, !UNSAFE.contains(&name.as_str()), "{}", manifest.display());
    }
}
