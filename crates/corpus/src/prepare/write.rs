//! Last pass: ids of the three sides, the groups, the tokenizer and the manifest.

use super::{Plan, Progress, Stage, ingest::Ingested, probe, stop_if_cancelled};
use crate::{
    Error, Manifest, Side, TokenFile, TokenWriter,
    error::IoContext,
    hash::{hex, sha256_of},
};
use sha2::{Digest, Sha256};
use std::{fs, path::Path};
use tokenizer::Tokenizer;

/// Width of a bin of the length histogram is `max_len / BINS`, at least 1.
const BINS: usize = 16;

/// A group as it is written.
struct Group {
    side: Side,
    name: String,
    messages: u64,
    tokens: u64,
}

/// Writes everything into `dir` and completes the manifest.
pub(super) fn write(
    ingested: &Ingested,
    plan: &Plan,
    tokenizer: &Tokenizer,
    dir: &Path,
    manifest: &mut Manifest,
    progress: &mut dyn Progress,
) -> Result<(), Error> {
    let (mut groups, index) = groups(ingested, plan);
    let writers = encode(ingested, plan, tokenizer, dir, manifest, &index, &mut groups, progress)?;
    finish_sides(writers, dir, groups.len() as u64, manifest)?;
    manifest.groups = groups.len() as u64;
    manifest.groups_sha256 = write_groups(&groups, dir)?;
    for group in &groups {
        manifest.side_mut(group.side).groups += 1;
    }
    let path = dir.join("tokenizer.json");
    fs::write(&path, tokenizer.to_bytes()).at("write", &path)?;
    let path = dir.join("manifest.json");
    let text = serde_json::to_vec_pretty(manifest)
        .map_err(|e| Error::Manifest { path: path.clone(), what: e.to_string() })?;
    fs::write(&path, text).at("write", &path)
}

/// Groups that have messages, by name; and where each group of the first pass is among them.
fn groups(ingested: &Ingested, plan: &Plan) -> (Vec<Group>, Vec<u32>) {
    let mut full = vec![false; ingested.group_names.len()];
    for (row, dropped) in ingested.rows.iter().zip(&plan.dropped) {
        full[row.group as usize] |= !dropped;
    }
    let mut order: Vec<usize> = (0..full.len()).filter(|&group| full[group]).collect();
    order.sort_unstable_by(|&a, &b| ingested.group_names[a].cmp(&ingested.group_names[b]));
    let mut index = vec![u32::MAX; full.len()];
    let mut groups = Vec::with_capacity(order.len());
    for group in order {
        index[group] = groups.len() as u32;
        let name = ingested.group_names[group].replace(['\t', '\n', '\r'], " ");
        groups.push(Group { side: plan.sides[group], name, messages: 0, tokens: 0 });
    }
    (groups, index)
}

#[expect(clippy::too_many_arguments, reason = "one pass that fills all of them")]
fn encode(
    ingested: &Ingested,
    plan: &Plan,
    tokenizer: &Tokenizer,
    dir: &Path,
    manifest: &mut Manifest,
    index: &[u32],
    groups: &mut [Group],
    progress: &mut dyn Progress,
) -> Result<[TokenWriter; 3], Error> {
    let max_len = manifest.max_len;
    let vocab_size = tokenizer.vocab_size() as u32;
    let create =
        |side: Side| TokenWriter::create(&dir.join(side.file_name()), vocab_size, max_len as u32);
    let mut writers = [create(Side::Train)?, create(Side::Valid)?, create(Side::Test)?];
    let specials = tokenizer.specials();
    let (bos, eos) = (specials.bos.unwrap_or(2), specials.eos.unwrap_or(3));
    let width = max_len.div_ceil(BINS).max(1);
    progress.begin(Stage::Encode, ingested.rows.len() as u64);
    let mut ids = Vec::with_capacity(max_len);
    ingested.spill.for_each(&ingested.rows, |i, row, text| {
        progress.done(i as u64);
        stop_if_cancelled(progress)?;
        if plan.dropped[i] {
            manifest.messages.near_duplicates_dropped += 1;
            return Ok(());
        }
        ids.clear();
        ids.push(bos);
        ids.extend(tokenizer.encode_at_most(text, max_len - 1));
        let truncated = ids.len() == max_len;
        if !truncated {
            ids.push(eos);
        }
        let side = plan.side(row);
        let group = index[row.group as usize];
        writers[side as usize].push(&ids, group, truncated)?;
        groups[group as usize].messages += 1;
        groups[group as usize].tokens += ids.len() as u64;
        manifest.messages.kept += 1;
        let info = manifest.side_mut(side);
        info.messages += 1;
        info.tokens += ids.len() as u64;
        info.truncated += u64::from(truncated);
        info.unk_targets += ids[1..].iter().filter(|&&id| Some(id) == specials.unk).count() as u64;
        add_length(&mut info.lengths, ids.len(), width, max_len);
        Ok(())
    })?;
    Ok(writers)
}

fn add_length(lengths: &mut Vec<(u32, u64)>, len: usize, width: usize, max_len: usize) {
    if lengths.is_empty() {
        let ends = (1..=max_len.div_ceil(width)).map(|bin| (bin * width).min(max_len));
        lengths.extend(ends.map(|end| (end as u32, 0)));
    }
    if let Some(bin) = lengths.get_mut((len - 1) / width) {
        bin.1 += 1;
    }
}

/// Ends the token files, train first; the others after the probe against it.
fn finish_sides(
    writers: [TokenWriter; 3],
    dir: &Path,
    groups: u64,
    manifest: &mut Manifest,
) -> Result<(), Error> {
    let all: u64 = Side::ALL.iter().map(|&side| manifest.side(side).tokens).sum();
    let mut train: Option<TokenFile> = None;
    for (side, mut writer) in Side::ALL.into_iter().zip(writers) {
        let path = dir.join(side.file_name());
        if writer.is_empty() {
            return Err(Error::NothingNew { side: side.name() });
        }
        writer.finish(groups, &[])?;
        let seen = match &train {
            None => Vec::new(),
            Some(train) => probe::seen_runs(train, &TokenFile::open(&path)?),
        };
        if !seen.is_empty() {
            writer.finish(groups, &seen)?;
        }
        let info = manifest.side_mut(side);
        info.seen_run = seen.iter().filter(|seen| **seen).count() as u64;
        info.target_tokens = info.tokens - info.messages;
        info.token_share = info.tokens as f64 / all as f64;
        info.unk_rate = info.unk_targets as f64 / info.target_tokens.max(1) as f64;
        info.file = side.file_name();
        info.sha256 = sha256_of(fs::File::open(&path).at("open", &path)?).at("read", &path)?;
        let file = TokenFile::open(&path)?;
        info.body_sha256 = hex(file.body_sha256());
        if side == Side::Train {
            train = Some(file);
        }
    }
    Ok(())
}

fn write_groups(groups: &[Group], dir: &Path) -> Result<String, Error> {
    let mut text = String::from("index\tside\tname\tmessages\ttokens\n");
    for (i, group) in groups.iter().enumerate() {
        let Group { side, name, messages, tokens } = group;
        text.push_str(&format!("{i}\t{}\t{name}\t{messages}\t{tokens}\n", side.name()));
    }
    let path = dir.join("groups.tsv");
    fs::write(&path, &text).at("write", &path)?;
    Ok(hex(&Sha256::digest(text.as_bytes())))
}
