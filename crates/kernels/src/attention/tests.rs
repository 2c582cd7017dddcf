use super::*;
use crate::{HalfKind, Isa, KvKind, Team, key_lanes, reference, store_keys};
use proptest::prelude::*;

fn values(n: usize, seed: u64) -> Vec<f32> {
    (0..n as u64).map(|i| crate::normal(seed, i)).collect()
}

fn head(x: &[f32], rows: std::ops::Range<usize>, stride: usize, from: usize, d: usize) -> Vec<f64> {
    rows.flat_map(|r| x[r * stride + from..r * stride + from + d].iter().map(|&v| f64::from(v)))
        .collect()
}

#[test]
fn forward_and_backward_agree_with_the_plain_loop() {
    let _level = crate::isa::hold();
    let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 5, scale: 0.4, window: None };
    let (h, g, d) = (4, 2, 5);
    let stride = (h + 2 * g) * d;
    let sequences = [(0, 70), (70, 3), (73, 1), (74, 130)];
    let rows = 204;
    let (qkv, d_out) = (values(rows * stride, 1), values(rows * h * d, 2));
    for isa in Isa::available() {
        isa.force();
        for threads in [1, 2] {
            let team = Team::new(threads);
            let segments: Vec<Segment> = sequences
                .iter()
                .map(|&(row, queries)| Segment {
                    row,
                    queries,
                    past: 0,
                    kv: Kv::whole(
                        &qkv[row * stride + h * d..],
                        &qkv[row * stride + (h + g) * d..],
                        stride,
                    ),
                })
                .collect();
            let (mut out, mut lse) = (vec![0.0; rows * h * d], vec![0.0; h * rows]);
            let mut work = vec![0.0; attention_workspace(&shape, threads, 130)];
            attention_forward(
                &team, &shape, &segments, &qkv, stride, &mut out, &mut lse, &mut work,
            );
            let mut d_qkv = vec![3.0; qkv.len()];
            attention_backward(
                &team, &shape, &sequences, &qkv, &out, &lse, &d_out, &mut d_qkv, &mut work,
            );
            for &(row, tokens) in &sequences {
                let span = row..row + tokens;
                let (mut dk, mut dv) =
                    (vec![vec![0.0; tokens * d]; g], vec![vec![0.0; tokens * d]; g]);
                for head_index in 0..h {
                    let group = head_index / 2;
                    let q = head(&qkv, span.clone(), stride, head_index * d, d);
                    let k = head(&qkv, span.clone(), stride, (h + group) * d, d);
                    let v = head(&qkv, span.clone(), stride, (h + g + group) * d, d);
                    let (right, right_lse) = reference::attention(&q, &k, &v, d, 0, 0.4);
                    let got: Vec<f32> = head(&out, span.clone(), h * d, head_index * d, d)
                        .iter()
                        .map(|&x| x as f32)
                        .collect();
                    reference::assert_close(&got, &right, 3e-6, "out");
                    reference::assert_close(
                        &lse[head_index * rows + row..][..tokens],
                        &right_lse,
                        2e-6,
                        "lse",
                    );
                    if tokens > 8 {
                        continue;
                    }
                    let go = head(&d_out, span.clone(), h * d, head_index * d, d);
                    let loss = |q: &[f64], k: &[f64], v: &[f64]| -> f64 {
                        reference::attention(q, k, v, d, 0, 0.4)
                            .0
                            .iter()
                            .zip(&go)
                            .map(|(o, g)| o * g)
                            .sum()
                    };
                    let dq = reference::numeric_gradient(&q, |q| loss(q, &k, &v));
                    let got: Vec<f32> = head(&d_qkv, span.clone(), stride, head_index * d, d)
                        .iter()
                        .map(|&x| x as f32)
                        .collect();
                    reference::assert_close(&got, &dq, 1e-5, "d_q");
                    let add = |a: &mut Vec<f64>, b: Vec<f64>| {
                        a.iter_mut().zip(b).for_each(|(a, b)| *a += b)
                    };
                    add(&mut dk[group], reference::numeric_gradient(&k, |k| loss(&q, k, &v)));
                    add(&mut dv[group], reference::numeric_gradient(&v, |v| loss(&q, &k, v)));
                }
                if tokens <= 8 {
                    for group in 0..g {
                        for (from, right) in [(h + group, &dk[group]), (h + g + group, &dv[group])]
                        {
                            let got: Vec<f32> = head(&d_qkv, span.clone(), stride, from * d, d)
                                .iter()
                                .map(|&x| x as f32)
                                .collect();
                            reference::assert_close(&got, right, 1e-5, "d_k, d_v");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn backward_across_tiles_and_windows() {
    for window in [None, Some(1), Some(10), Some(64), Some(70), Some(149)] {
        backward_across_tiles(window);
    }
}

/// Long sequences cross tiles: checked against the softmax Jacobian written out in f64.
fn backward_across_tiles(window: Option<usize>) {
    let _level = crate::isa::hold();
    let shape = AttentionShape { heads: 1, kv_heads: 1, head_dim: 3, scale: 0.5, window };
    let (d, n) = (3, 150);
    let (qkv, d_out) = (values(n * 9, 5), values(n * 3, 6));
    let (q, k, v) =
        (head(&qkv, 0..n, 9, 0, d), head(&qkv, 0..n, 9, 3, d), head(&qkv, 0..n, 9, 6, d));
    let go: Vec<f64> = d_out.iter().map(|&x| f64::from(x)).collect();
    let mut right = vec![0.0; n * 9];
    for i in 0..n {
        let seen = window.map_or(0, |w| (i + 1).saturating_sub(w))..=i;
        let score = |j: usize| 0.5 * (0..d).map(|c| q[i * d + c] * k[j * d + c]).sum::<f64>();
        let sum: f64 = seen.clone().map(|j| score(j).exp()).sum();
        let share = |j: usize| score(j).exp() / sum;
        let o = |c: usize| seen.clone().map(|j| share(j) * v[j * d + c]).sum::<f64>();
        let delta: f64 = (0..d).map(|c| go[i * d + c] * o(c)).sum();
        for j in seen.clone() {
            let p = share(j);
            let dp: f64 = (0..d).map(|c| go[i * d + c] * v[j * d + c]).sum();
            let ds = p * (dp - delta) * 0.5;
            for c in 0..d {
                right[i * 9 + c] += ds * k[j * d + c];
                right[j * 9 + 3 + c] += ds * q[i * d + c];
                right[j * 9 + 6 + c] += p * go[i * d + c];
            }
        }
    }
    let team = Team::new(2);
    let kv = Kv::whole(&qkv[3..], &qkv[6..], 9);
    let segment = Segment { row: 0, queries: n, past: 0, kv };
    let (mut out, mut lse, mut d_qkv) = (vec![0.0; n * 3], vec![0.0; n], vec![0.0; n * 9]);
    let mut work = vec![0.0; attention_workspace(&shape, 2, n)];
    attention_forward(&team, &shape, &[segment], &qkv, 9, &mut out, &mut lse, &mut work);
    attention_backward(&team, &shape, &[(0, n)], &qkv, &out, &lse, &d_out, &mut d_qkv, &mut work);
    reference::assert_close(&d_qkv, &right, 1e-5, "d_qkv");
}

#[test]
fn a_window_hides_what_lies_before_it() {
    let _level = crate::isa::hold();
    let (n, window) = (150, 70);
    let (q, k, v) = (values(n * 3, 1), values(n * 3, 2), values(n * 3, 3));
    let wide = |x: &[f32]| x.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    let (q64, k64, v64) = (wide(&q), wide(&k), wide(&v));
    let mut right = Vec::new();
    for i in 0..n {
        let seen = (i + 1).saturating_sub(window)..i + 1;
        let score = |j: usize| (0..3).map(|c| q64[i * 3 + c] * k64[j * 3 + c]).sum::<f64>();
        let e: Vec<f64> = seen.clone().map(|j| (0.5 * score(j)).exp()).collect();
        let sum: f64 = e.iter().sum();
        right.extend(
            (0..3)
                .map(|c| seen.clone().zip(&e).map(|(j, e)| e / sum * v64[j * 3 + c]).sum::<f64>()),
        );
    }
    let shape =
        AttentionShape { heads: 1, kv_heads: 1, head_dim: 3, scale: 0.5, window: Some(window) };
    for isa in Isa::available() {
        isa.force();
        let team = Team::new(2);
        let mut work = vec![0.0; attention_workspace(&shape, 2, 0)];
        let kv = Kv::whole(&k, &v, 3);
        let segment = Segment { row: 0, queries: n, past: 0, kv };
        let mut out = vec![0.0; n * 3];
        attention_forward(&team, &shape, &[segment], &q, 3, &mut out, &mut [], &mut work);
        reference::assert_close(&out, &right, 1e-5, "windowed attention");
    }
}

#[test]
fn chunks_and_single_steps_give_the_same_bits() {
    same_bits(None);
    for window in [1, 64, 65, 100] {
        same_bits(Some(window));
    }
}

/// Keys and values scattered over pages of several sizes, read in several pieces.
#[test]
fn pages_give_the_same_bits() {
    let _level = crate::isa::hold();
    for isa in Isa::available() {
        isa.force();
        pages_give_the_same_bits_here();
    }
}

fn pages_give_the_same_bits_here() {
    let n = 150;
    let (q, k, v) = (values(n * 16, 1), values(n * 8, 2), values(n * 8, 3));
    let team = Team::new(2);
    for window in [None, Some(70)] {
        let shape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 8, scale: 0.35, window };
        let mut work = vec![0.0; attention_workspace(&shape, 2, 0)];
        let mut run = |kv: Kv, pieces: &[usize]| {
            let (mut all, mut past) = (Vec::new(), 0);
            for &queries in pieces {
                let mut out = vec![0.0; queries * 16];
                let segment = Segment { row: 0, queries, past, kv };
                let q = &q[past * 16..];
                attention_forward(&team, &shape, &[segment], q, 16, &mut out, &mut [], &mut work);
                all.extend(out.iter().map(|x: &f32| x.to_bits()));
                past += queries;
            }
            all
        };
        let whole = run(Kv::whole(&k, &v, 8), &[n]);
        for page_tokens in [1, 5, 16, 64, 128] {
            let count = n.div_ceil(page_tokens);
            // Backwards, with a page of rubbish between any two.
            let pages: Vec<u32> = (0..count as u32).rev().map(|p| 2 * p).collect();
            let rows = 2 * count * page_tokens;
            let (mut keys, mut values) = (vec![f32::NAN; rows * 8], vec![f32::NAN; rows * 8]);
            let kind = KvKind::F32;
            let lanes = key_lanes(page_tokens);
            for j in 0..n {
                let (page, inside) = (pages[j / page_tokens] as usize, j % page_tokens);
                let place = page * page_tokens * 8..(page + 1) * page_tokens * 8;
                let key = &k[j * 8..][..8];
                store_keys(kind, key, 8, (8, lanes), inside, &mut keys[place.clone()]);
                values[place][inside * 8..][..8].copy_from_slice(&v[j * 8..][..8]);
            }
            let kv = Kv {
                keys: &keys,
                values: &values,
                kind,
                stride: 8,
                pages: &pages,
                page_tokens,
                lanes,
            };
            assert_eq!(whole, run(kv, &[n]), "pages of {page_tokens}");
            assert_eq!(whole, run(kv, &[7, 64, 1, 63, 15]), "pages of {page_tokens}");
            assert_eq!(whole, run(kv, &[1; 150]), "pages of {page_tokens}, one by one");
            assert_eq!(whole, run(kv, &[6, 5, 3, 64, 2, 6, 64]), "pages of {page_tokens}");
        }
    }
}

fn same_bits(window: Option<usize>) {
    let _level = crate::isa::hold();
    let shape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 8, scale: 0.35, window };
    let (n, q_width) = (150, 16);
    let (q, k, v) = (values(n * q_width, 1), values(n * 8, 2), values(n * 8, 3));
    let kv = Kv::whole(&k, &v, 8);
    let team = Team::new(2);
    let mut work = vec![0.0; attention_workspace(&shape, 2, 0)];
    let mut run = |pieces: &[usize]| {
        let mut all = Vec::new();
        let mut past = 0;
        for &queries in pieces {
            let mut out = vec![0.0; queries * q_width];
            let segment = Segment { row: 0, queries, past, kv };
            attention_forward(
                &team,
                &shape,
                &[segment],
                &q[past * q_width..],
                q_width,
                &mut out,
                &mut [],
                &mut work,
            );
            all.extend(out.iter().map(|x: &f32| x.to_bits()));
            past += queries;
        }
        all
    };
    let whole = run(&[150]);
    assert_eq!(whole, run(&[1; 150]));
    assert_eq!(whole, run(&[7, 64, 1, 63, 15]));
}

/// A head as it is kept, worked out one value after another.
fn kept(kind: KvKind, head: &[f32]) -> Vec<f32> {
    let half = |x: f32| HalfKind::F16.value(HalfKind::F16.bits(x));
    match kind {
        KvKind::F32 => head.to_vec(),
        KvKind::F16 => head.iter().map(|&x| half(x)).collect(),
        KvKind::Q8 => {
            let share = |values: &[f32]| -> Vec<f32> {
                let scale = half(values.iter().fold(0.0f32, |top, v| top.max(v.abs())) / 127.0);
                let code = |v: f32| (v / scale).round_ties_even().clamp(-127.0, 127.0);
                values.iter().map(|&v| code(v) * scale).collect()
            };
            head.chunks(32).flat_map(share).collect()
        }
    }
}

/// Keys and values of `n` positions of `g` heads in pages that lie backwards with rubbish between them.
struct Paged {
    kind: KvKind,
    stride: usize,
    page_tokens: usize,
    pages: Vec<u32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Paged {
    fn new(kind: KvKind, (g, d): (usize, usize), page_tokens: usize, rows: [&[f32]; 2]) -> Paged {
        let n = rows[0].len() / (g * d);
        let (count, stride) = (n.div_ceil(page_tokens), kind.row_words(g, d));
        let pages: Vec<u32> = (0..count as u32).rev().map(|page| 2 * page).collect();
        let mut keys = vec![f32::NAN; 2 * count * page_tokens * stride];
        let mut values = keys.clone();
        for j in 0..n {
            let at = pages[j / page_tokens] as usize * page_tokens * stride;
            let (page, inside) = (at..at + page_tokens * stride, j % page_tokens);
            let [key, value] = rows.map(|rows| &rows[j * g * d..(j + 1) * g * d]);
            let place = (stride, key_lanes(page_tokens));
            store_keys(kind, key, d, place, inside, &mut keys[page.clone()]);
            kind.store(value, d, &mut values[page][inside * stride..(inside + 1) * stride]);
        }
        Paged { kind, stride, page_tokens, pages, keys, values }
    }

    fn kv(&self) -> Kv<'_> {
        Kv {
            keys: &self.keys,
            values: &self.values,
            kind: self.kind,
            stride: self.stride,
            pages: &self.pages,
            page_tokens: self.page_tokens,
            lanes: key_lanes(self.page_tokens),
        }
    }
}

/// What all queries find, read in pieces, by heads one after another in a row.
fn found(threads: usize, shape: &AttentionShape, kv: Kv, q: &[f32], pieces: &[usize]) -> Vec<f32> {
    let (team, width) = (Team::new(threads), shape.heads * shape.head_dim);
    let mut work = vec![0.0; attention_workspace(shape, threads, 0)];
    let (mut out, mut past) = (vec![0.0; q.len()], 0);
    for &queries in pieces {
        let rows = past * width..(past + queries) * width;
        let (segment, q) = (Segment { row: 0, queries, past, kv }, &q[rows.clone()]);
        let out = &mut out[rows];
        attention_forward(&team, shape, &[segment], q, width, out, &mut [], &mut work);
        past += queries;
    }
    out
}

/// The same in f64, straight from the formula.
fn plainly(shape: &AttentionShape, q: &[f32], k: &[f32], v: &[f32]) -> Vec<f64> {
    let (h, g, d) = (shape.heads, shape.kv_heads, shape.head_dim);
    let n = q.len() / (h * d);
    let mut out = vec![0.0; q.len()];
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    for (i, head) in (0..n).flat_map(|i| (0..h).map(move |head| (i, head))) {
        let (at, group) = ((i * h + head) * d, head / (h / g));
        let first = shape.window.map_or(0, |window| (i + 1).saturating_sub(window));
        let row = |j: usize| (j * g + group) * d..(j * g + group + 1) * d;
        let scores: Vec<f64> =
            (first..=i).map(|j| f64::from(shape.scale) * dot(&q[at..at + d], &k[row(j)])).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
        for (j, score) in (first..=i).zip(&scores) {
            let p = (score - top).exp() / sum;
            out[at..at + d].iter_mut().zip(&v[row(j)]).for_each(|(o, &v)| *o += p * f64::from(v));
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Keys one by one or sixteen together, of every kind, for few queries and for many: the same bits at
    /// every level, and those of the formula nearly.
    #[test]
    fn however_keys_are_kept_few_and_many_give_the_same_bits(
        kind in prop::sample::select(&KvKind::ALL[..]),
        d in prop::sample::select(vec![6usize, 16, 33, 64, 80, 256]),
        (h, g) in prop::sample::select(vec![(1usize, 1usize), (3, 1), (4, 2), (9, 3), (5, 1), (12, 1)]),
        window in prop::option::of(1usize..140),
        page_tokens in prop::sample::select(vec![16usize, 48, 64, 128]),
        pieces in prop::collection::vec(1usize..14, 1..5),
        before in 0usize..130,
        seed: u64,
    ) {
        let _level = crate::isa::hold();
        let scale = 1.0 / (d as f32).sqrt();
        let shape = AttentionShape { heads: h, kv_heads: g, head_dim: d, scale, window };
        let n = before + pieces.iter().sum::<usize>();
        let of = |heads: usize, salt| values(n * heads * d, seed ^ salt);
        let (q, k, v) = (of(h, 1), of(g, 2), of(g, 3));
        let pieces: Vec<usize> = (before > 0).then_some(before).into_iter().chain(pieces).collect();
        let [alone, together] =
            [7, page_tokens].map(|tokens| Paged::new(kind, (g, d), tokens, [&k, &v]));
        let [k, v] = [&k, &v].map(|x| x.chunks(d).flat_map(|x| kept(kind, x)).collect::<Vec<_>>());
        let right = plainly(&shape, &q, &k, &v);
        let bits = |x: Vec<f32>| x.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let mut first = None;
        for isa in Isa::available() {
            isa.force();
            let whole = found(1, &shape, alone.kv(), &q, &[n]);
            reference::assert_close(&whole, &right, 1e-5, "attention");
            let whole = bits(whole);
            prop_assert_eq!(first.get_or_insert_with(|| whole.clone()), &whole, "{:?}", isa);
            for (kv, pieces) in
                [(alone.kv(), &pieces), (together.kv(), &vec![n]), (together.kv(), &pieces)]
            {
                let found = bits(found(2, &shape, kv, &q, pieces));
                prop_assert_eq!(&whole, &found, "{:?}, lanes {}, {:?}", isa, kv.lanes, pieces);
            }
        }
    }
}
