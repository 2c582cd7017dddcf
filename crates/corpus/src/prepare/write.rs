//! Last pass: ids of the three sides, the groups, the tokenizer and the manifest.

use super::{Plan, Progress, Stage, VocabularyKind, ingest::Ingested, probe, stop_if_cancelled};
use crate::{
    Error, Manifest, Side, TokenBody, TokenWriter,
    bits::Bits,
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

/// Where to write, and with how much memory.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) dir: &'a Path,
    pub(super) memory: usize,
}

/// Writes everything into a folder and completes the manifest.
pub(super) fn write(
    ingested: &Ingested,
    plan: &Plan,
    tokenizer: &Tokenizer,
    place: Place<'_>,
    manifest: &mut Manifest,
    progress: &mut dyn Progress,
) -> Result<(), Error> {
    let dir = place.dir;
    let (mut groups, index) = groups(ingested, plan)?;
    let writers = encode(ingested, plan, tokenizer, dir, manifest, &index, &mut groups, progress)?;
    finish_sides(writers, place, groups.len() as u64, manifest)?;
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
fn groups(ingested: &Ingested, plan: &Plan) -> Result<(Vec<Group>, Vec<u32>), Error> {
    let mut full = vec![false; ingested.group_names.len()];
    for (i, row) in ingested.spill.rows().enumerate() {
        full[row?.group as usize] |= !plan.dropped.get(i);
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
    Ok((groups, index))
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
    // Another model's texts may begin with nothing, or end so.
    let given = manifest.vocabulary.kind == VocabularyKind::Given;
    let (before, eos) = match given {
        true => (tokenizer.put_before(), specials.eos),
        false => (vec![specials.bos.unwrap_or(2)], Some(specials.eos.unwrap_or(3))),
    };
    let width = max_len.div_ceil(BINS).max(1);
    progress.begin(Stage::Encode, ingested.spill.len() as u64);
    let mut ids = Vec::with_capacity(max_len);
    ingested.spill.for_each(|i, row, text| {
        progress.done(i as u64);
        stop_if_cancelled(progress)?;
        if plan.dropped.get(i) {
            manifest.messages.near_duplicates_dropped += 1;
            return Ok(());
        }
        ids.clear();
        ids.extend(&before);
        ids.extend(tokenizer.encode_at_most(text, max_len.saturating_sub(before.len())));
        let truncated = ids.len() >= max_len;
        if !truncated {
            ids.extend(eos);
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

/// Ends the token files; valid and test after the probe against train.
fn finish_sides(
    writers: [TokenWriter; 3],
    place: Place<'_>,
    groups: u64,
    manifest: &mut Manifest,
) -> Result<(), Error> {
    if let Some((side, _)) = Side::ALL.iter().zip(&writers).find(|(_, writer)| writer.is_empty()) {
        return Err(Error::NothingNew { side: side.name() });
    }
    let all: u64 = Side::ALL.iter().map(|&side| manifest.side(side).tokens).sum();
    let [train, valid, test] = writers;
    let train = train.end()?;
    for (side, writer) in [(Side::Valid, valid), (Side::Test, test)] {
        let body = writer.end()?;
        let seen = probe::seen_runs(&train, &body, place.memory)?;
        finish_side(side, body, &seen, groups, place.dir, manifest)?;
    }
    finish_side(Side::Train, train, &Bits::default(), groups, place.dir, manifest)?;
    for side in Side::ALL {
        let info = manifest.side_mut(side);
        info.token_share = info.tokens as f64 / all as f64;
    }
    Ok(())
}

fn finish_side(
    side: Side,
    body: TokenBody,
    seen: &Bits,
    groups: u64,
    dir: &Path,
    manifest: &mut Manifest,
) -> Result<(), Error> {
    let body_sha256 = body.finish(groups, |i| seen.get(i))?;
    let path = dir.join(side.file_name());
    let info = manifest.side_mut(side);
    info.seen_run = seen.count();
    info.target_tokens = info.tokens - info.messages;
    info.unk_rate = info.unk_targets as f64 / info.target_tokens.max(1) as f64;
    info.file = side.file_name();
    info.sha256 = sha256_of(fs::File::open(&path).at("open", &path)?).at("read", &path)?;
    info.body_sha256 = hex(&body_sha256);
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
