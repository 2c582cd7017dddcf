//! Groups to sides.
//!
//! Groups stand in the order of a hash of seed and name. Test takes each group in that order that
//! fits into its share of the tokens (a tenth of the share over is allowed), then valid does the same
//! with the rest; train gets what is left. Groups are very uneven, so a cut by count would miss the
//! shares; fitting by tokens comes close whenever the groups allow it. A side whose share is smaller
//! than every group takes the smallest group.

use super::options::GroupBy;
use crate::{Error, Side, hash::stable_u64};

/// A group and its weight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sized<'a> {
    pub(super) name: &'a str,
    pub(super) tokens: u64,
}

/// The side of every group.
pub(super) fn split(
    groups: &[Sized<'_>],
    shares: [u32; 3],
    seed: u64,
    group_by: &GroupBy,
) -> Result<Vec<Side>, Error> {
    if groups.len() < 3 {
        let side = if groups.len() < 2 { Side::Valid.name() } else { Side::Test.name() };
        return Err(Error::NoGroup { side, groups: groups.len(), group_by: group_by.to_string() });
    }
    let key = |g: &Sized<'_>| stable_u64(&[&seed.to_le_bytes(), g.name.as_bytes()]);
    let mut order: Vec<(u64, &str, usize)> =
        groups.iter().enumerate().map(|(i, g)| (key(g), g.name, i)).collect();
    order.sort_unstable();
    let total: u64 = groups.iter().map(|g| g.tokens).sum();
    let mut sides = vec![Side::Train; groups.len()];
    let mut left = groups.len();
    for (side, share) in [(Side::Test, shares[2]), (Side::Valid, shares[1])] {
        let room = total * u64::from(share) / 100;
        let most = room + room / 10;
        let mut taken = 0;
        let mut count = 0;
        for &(_, _, i) in &order {
            let free = sides[i] == Side::Train && left > needed_after(side);
            if free && taken < room && taken + groups[i].tokens <= most {
                taken += groups[i].tokens;
                sides[i] = side;
                count += 1;
                left -= 1;
            }
        }
        if count == 0 {
            let free = order.iter().filter(|(_, _, i)| sides[*i] == Side::Train);
            if let Some(&(_, _, i)) = free.min_by_key(|(key, _, i)| (groups[*i].tokens, *key)) {
                sides[i] = side;
                left -= 1;
            }
        }
    }
    Ok(sides)
}

/// Groups that the sides after this one need at least.
fn needed_after(side: Side) -> usize {
    match side {
        Side::Test => 2,
        Side::Valid => 1,
        Side::Train => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shares(sizes: &[u64], seed: u64) -> ([u64; 3], Vec<Side>) {
        let names: Vec<String> = (0..sizes.len()).map(|i| format!("g{i}")).collect();
        let groups: Vec<Sized<'_>> =
            names.iter().zip(sizes).map(|(name, &tokens)| Sized { name, tokens }).collect();
        let sides = split(&groups, [80, 10, 10], seed, &GroupBy::Mailbox).unwrap();
        let mut sums = [0; 3];
        sides.iter().zip(sizes).for_each(|(side, n)| sums[*side as usize] += n);
        (sums, sides)
    }

    #[test]
    fn comes_close_with_uneven_groups() {
        // Messages of 80 real mailboxes: the largest alone is near a tenth of all.
        let sizes = [
            1, 1, 2, 3, 5, 7, 7, 9, 10, 11, 12, 13, 16, 16, 21, 23, 26, 32, 33, 36, 49, 50, 52, 66,
            68, 108, 113, 125, 127, 130, 155, 172, 183, 184, 184, 189, 209, 218, 229, 265, 271,
            273, 276, 282, 291, 295, 349, 389, 429, 515, 562, 583, 644, 710, 721, 788, 816, 816,
            866, 880, 885, 937, 968, 988, 1025, 1061, 1098, 1315, 1326, 1328, 1363, 1632, 1770,
            1862, 1992, 2116, 3463, 3810, 3930, 4440,
        ];
        let total: u64 = sizes.iter().sum();
        for seed in 0..50 {
            let (sums, _) = shares(&sizes, seed);
            for side in [1, 2] {
                let share = sums[side] as f64 / total as f64;
                assert!((0.08..=0.111).contains(&share), "seed {seed}: {share}");
            }
        }
    }

    #[test]
    fn two_groups_are_too_few() {
        let groups = [Sized { name: "a", tokens: 5 }, Sized { name: "b", tokens: 5 }];
        let error = split(&groups, [80, 10, 10], 0, &GroupBy::Sender).unwrap_err().to_string();
        assert!(error.contains("test side") && error.contains("sender"), "{error}");
    }

    proptest! {
        #[test]
        fn every_side_has_a_group_and_order_does_not_matter(
            sizes in prop::collection::vec(1u64..1000, 3..40), seed in any::<u64>(),
        ) {
            let (_, sides) = shares(&sizes, seed);
            for side in Side::ALL {
                prop_assert!(sides.contains(&side));
            }
            let names: Vec<String> = (0..sizes.len()).map(|i| format!("g{i}")).collect();
            let groups: Vec<Sized<'_>> = names.iter().zip(&sizes).rev()
                .map(|(name, &tokens)| Sized { name, tokens }).collect();
            let mut reversed = split(&groups, [80, 10, 10], seed, &GroupBy::Mailbox).unwrap();
            reversed.reverse();
            prop_assert_eq!(sides, reversed);
        }
    }
}
